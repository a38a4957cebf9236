"""Tree of thought: three first steps, two second steps from each, and a vote by select. Every node is a branch of one root."""
import ramet
from ramet.frontend.report import print_saved

STYLES = ["a cheap", "a quick", "a safe"]
STEP = r" [A-Z][a-z ,']{8,60}\."  # one sentence, and not an empty one


@ramet.function
def solve(s, puzzle):
    s += f"{puzzle}\nThink step by step, one short step at a time.\n"
    leaves = []
    first = s.fork(len(STYLES))
    first += lambda i: f"Step 1, {STYLES[i]} one:" + ramet.gen("step", max_tokens=20, temperature=0, regex=STEP) + "\n"
    for branch in first:  # forks wait for nothing: all six leaves are on their way before the first step is read
        second = branch.fork(2)
        second += lambda i: f"Step 2, {['usual', 'daring'][i]}:" + ramet.gen("end", max_tokens=20, temperature=0, regex=STEP)
        leaves += list(second)
    plans = [(leaf["step"], leaf["end"]) for leaf in leaves]
    letters = [chr(ord("A") + i) for i in range(len(plans))]
    s += "Plans:\n" + "".join(f"{letter}.{a}{b}\n" for letter, (a, b) in zip(letters, plans))
    voters = s.fork(3)
    voters += lambda i: f"When {['cost', 'time', 'risk'][i]} matters, the best plan is" + ramet.select("vote", [f" {x}" for x in letters])
    votes = [v["vote"].strip() for v in voters]
    winner = max(letters, key=votes.count)
    s += f"The winner is plan {winner} because" + ramet.gen("reason", max_tokens=16, temperature=0, stop="\n")
    return plans[letters.index(winner)], votes


if __name__ == "__main__":
    state = solve.run("How can four people cross a river with a boat for two?")
    plan, votes = state.ret_value
    print("votes:", " ".join(votes))
    print("plan:", *plan, sep="\n  ")
    print("because", state["reason"])
    print_saved(state)
