"""Multi-chain reasoning: several chains of thought in parallel, and one answer from all of them."""
import ramet
from ramet.frontend.report import print_saved

SHOTS = """Question: A box holds 4 bags of 6 apples. How many apples are in 2 boxes?
Reasoning: One box holds 4 times 6, which is 24. Two boxes hold 48.
Answer: 48

Question: Tom has 20 euros and buys 3 books of 5 euros. What is left?
Reasoning: Three books cost 15. 20 minus 15 is 5.
Answer: 5

"""


@ramet.function
def solve(s, question, chains=4):
    s += SHOTS + f"Question: {question}\nReasoning:"
    forks = s.fork(chains)
    for i, f in enumerate(forks):
        f += ramet.gen("reasoning", max_tokens=40, stop="\n", temperature=0.8, seed=i)
        f += "\nAnswer: " + ramet.gen_int("answer", max_tokens=4, temperature=0)
    forks.join()
    s += " " + " Or: ".join(r.strip() for r in s["reasoning"]) + "\nAll in all the answer is "
    s += ramet.gen_int("final", max_tokens=4, temperature=0)
    return s["answer"], s["final"]


if __name__ == "__main__":
    state = solve.run("A train has 6 cars with 30 seats each. How many seats are in it?")
    answers, final = state.ret_value
    print("chains:", answers)
    print("answer:", final)
    print_saved(state)
