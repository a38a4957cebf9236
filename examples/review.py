"""An essay, three judges that are branches of one state, and a verdict that is a typed value.

The essay is computed once: the three branches and the verdict read its keys and values. The second run has the cache off.
"""
import time
from typing import Literal

from pydantic import BaseModel, Field

import ramet
from ramet.frontend.report import print_costs, print_saved

ESSAY = """Cities should plant more trees. A street with trees is up to eight degrees cooler in July than one without, and people who live \
there walk more. The trees hold back rain that would otherwise fill the sewers, and the sewers of most towns were built when half as many \
people lived in them. Some say that roots break pipes and that leaves must be swept up. Both are true, and both cost less than the heat does: \
my own town paid more for one summer of hospital beds than for thirty years of gardeners. Others say that a tree needs twenty years before it \
gives any shade. That is an argument for planting it today. We do not need a study. We need shovels, and somebody to carry water."""


class Verdict(BaseModel):
    grade: Literal["poor", "fair", "good", "excellent"]
    score: int = Field(ge=1, le=10)
    publish: bool
    advice: str = Field(max_length=80)


@ramet.function
def review(s, essay, show):
    s += ramet.system("You are a careful editor.") + ramet.user("Read this essay.\n\n" + essay)
    s += ramet.assistant("I have read it.")
    topics = ["clarity", "evidence", "style"]
    forks = s.fork(len(topics))
    for f, topic in zip(forks, topics):
        f += ramet.user(f"Judge its {topic} in one sentence.") + ramet.assistant(ramet.gen("note", max_tokens=40, temperature=0, stop="\n"))
    for f, topic in zip(forks, topics):
        show(f"\n{topic}: ")
        for piece in f.text_iter("note"):
            show(piece)
    forks.join()  # s["note"] is now a list of three
    notes = "".join(f"{topic}: {note}\n" for topic, note in zip(topics, s["note"]))
    s += ramet.user(f"These are the notes:\n{notes}Give your verdict as JSON.")
    s += ramet.assistant(ramet.gen_as("verdict", Verdict, max_tokens=120, temperature=0))
    show("\nverdict: ")
    for piece in s.text_iter("verdict"):
        show(piece)
    return s["verdict"]


def measured(label, show, **options):
    with ramet.Runtime(**options) as runtime:
        start = time.perf_counter()
        state = review.run(essay=ESSAY, show=show, backend=runtime)
        return state, (label, state.run.totals, time.perf_counter() - start)


if __name__ == "__main__":
    state, warm = measured("shared prefixes", lambda text: print(text, end="", flush=True))
    print(f"\n\nThe typed result: {state.ret_value!r}\n")
    print_costs([warm, measured("cache off", lambda text: None, disable_radix_cache=True)[1]])
    print_saved(state)
