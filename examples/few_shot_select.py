"""Many questions after one few-shot prefix, each answered by choosing among options: the prefix is computed once."""
import time

import ramet
from ramet.frontend.report import print_costs, print_saved

SHOTS = """Say whether each review is positive or negative.

Review: The soup was cold and nobody came to ask. Answer: negative
Review: We laughed the whole evening and will come again. Answer: positive
Review: The room smelled of paint and the bed was too short. Answer: negative
Review: A friendly owner, fresh bread, and a view of the lake. Answer: positive
"""
REVIEWS = [
    "The film was two hours too long.",
    "I have never slept so well.",
    "My phone broke on the second day and they would not help.",
    "Best coffee in town, and the staff remember your name.",
    "The train was late, crowded and hot.",
    "A wonderful book that I gave to all my friends.",
]


@ramet.function
def classify(s, review):
    s += SHOTS + f"Review: {review} Answer:"
    s += ramet.select("label", choices=[" positive", " negative"])
    return s["label"].strip(), s.get_meta_info("label")


if __name__ == "__main__":
    start = time.perf_counter()
    states = classify.run_batch([{"review": r} for r in REVIEWS], progress_bar=True)
    for review, state in zip(REVIEWS, states):
        print(f"{state.ret_value[0]:9} {review}")
    totals = {key: sum(s.run.totals[key] for s in states) for key in states[0].run.totals}
    print_costs([(f"{len(REVIEWS)} questions", totals, time.perf_counter() - start)])
    print_saved(*states)
