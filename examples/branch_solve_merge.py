"""Branch, solve, merge: an essay is judged on four sides at once, by a letter and a comment each, and the judgements are merged."""
import json

import ramet
from ramet.frontend.report import print_saved

ESSAY = """Our library should open on Sundays. Most people work on the other days, and children need a warm place to read. The town spends more
on one firework than a librarian costs in a month. Nobody has ever learned to read from a firework."""
SIDES = ["clarity", "evidence", "style", "fairness"]
VERDICT = {
    "type": "object",
    "properties": {"grade": {"enum": ["poor", "fair", "good"]}, "publish": {"type": "boolean"}},
    "required": ["grade", "publish"],
    "additionalProperties": False,
}


@ramet.function
def judge(s, essay):
    s += f"Essay: {essay}\n\n"

    def grade(branch, side):
        branch += f"Its {side}, from A, best, to D, worst, is" + ramet.select("grade", [" A", " B", " C", " D"])
        branch += ". Comment:" + ramet.gen("comment", max_tokens=20, stop="\n", temperature=0)
        return branch["grade"].strip(), branch["comment"].strip()

    forks = s.fork(names=SIDES)
    marks = dict(zip(SIDES, forks.map(lambda branch: grade(branch, SIDES[list(forks).index(branch)]))))
    s += "Judgements:\n" + "".join(f"{side}: {letter}, {comment}\n" for side, (letter, comment) in marks.items())
    s += "Verdict in JSON: " + ramet.gen("verdict", json_schema=VERDICT, max_tokens=40, temperature=0)
    return marks, json.loads(s["verdict"])


if __name__ == "__main__":
    state = judge.run(ESSAY)
    marks, verdict = state.ret_value
    for side, (letter, comment) in marks.items():
        print(f"{side}: {letter} {comment}")
    print("verdict:", verdict)
    print_saved(state)
