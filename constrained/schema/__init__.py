"""JSON Schema as a grammar, in three steps.

document    checks and numbers the schemas; $ref, $id, anchors, places (checks: the shape of each keyword's value)
logic       solves a conjunction of schemas into facts about one kind of value (keywords*: what each asserts, and its opposite;
            facts, state: what the search works on; tags, unevaluated; match: a pattern against a name)
emit        facts as terms and rules (lists, numbers, style; plain: the usual schemas, without the search)
"""
