"""JSON Schema as a grammar, in four steps, each a file.

document    a schema checked and numbered: $ref, $id, anchors, places
logic       what a conjunction of schemas asks of one kind of value: allOf, anyOf, oneOf, not, if as sets of alternatives
keywords    each keyword as facts about one kind of value, and its negation
emit        facts as grammar terms, a rule for each node: objects, arrays, strings, numbers
"""
