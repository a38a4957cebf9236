"""Questions with given answers, as in MMLU: few shots, then a choice by its score. A batch shares the shots, computed once."""
import ramet
from ramet.frontend.report import print_saved

SHOTS = """Question: Which of these is a fruit?
A. lamp  B. pear  C. stone
Answer: B

Question: What do bees make?
A. honey  B. milk  C. bread
Answer: A

"""
ASKED = [
    ("Where do fish live?", ["in trees", "in water", "in fire"]),
    ("What is cold?", ["ice", "fire", "lava"]),
    ("Which is a number?", ["dog", "table", "seven"]),
    ("What falls from clouds?", ["rain", "shoes", "cars"]),
]


@ramet.function
def ask(s, question, options):
    s += SHOTS
    s += f"Question: {question}\n" + "  ".join(f"{x}. {option}" for x, option in zip("ABC", options)) + "\nAnswer:"
    s += ramet.select("letter", [" A", " B", " C"])
    return options["ABC".index(s["letter"].strip())]


if __name__ == "__main__":
    states = ask.compile().run_batch(ASKED)
    for (question, _), state in zip(ASKED, states):
        sure = max(state.get_meta_info("letter")["distribution"])
        print(f"{question} {state.ret_value} ({sure:.0%})")
    print_saved(*states)
