"""Reports to JSON that always parses and validates; keys and punctuation are forced without asking the model."""
import time
from typing import Literal

from pydantic import BaseModel, Field

import ramet
from ramet.frontend.report import print_costs, print_saved

REPORTS = [
    "On Monday Ada brought the old kettle to the workshop in Ashford. Its cable is broken; a new one costs 14 euros.",
    "Boris sold a green bicycle in Millbrook for 80 euros. The buyer wants a bell.",
    "The boiler of the school in Dunmore leaks. Carla says it cannot wait until Friday.",
]


class Record(BaseModel):
    title: str = Field(min_length=1, max_length=32)
    kind: Literal["repair", "sale", "loan"]
    urgency: int = Field(ge=1, le=5)
    cost: int = Field(ge=0, le=9999)
    person: str = Field(min_length=1, max_length=16)
    closed: bool


@ramet.function
def extract(s, report):
    s += "Turn each report into one JSON object: a short title, the kind, how urgent it is, its cost in euros, who reported it.\n\n"
    s += f"Report: {report}\nJSON: " + ramet.gen_as("record", Record, max_tokens=128, temperature=0)
    return s["record"]


def measured(label, **options):
    with ramet.Runtime(**options) as runtime:
        start = time.perf_counter()
        states = extract.run_batch([{"report": r} for r in REPORTS], backend=runtime)
        seconds = time.perf_counter() - start
        passes = runtime.get_server_info()["steps"]
    totals = {key: sum(s.run.totals[key] for s in states) for key in states[0].run.totals}
    return states, (f"{label}, {passes} passes", totals, seconds)


if __name__ == "__main__":
    states, jumping = measured("jump-forward")
    for state in states:
        print(state.ret_value)
    print_costs([jumping, measured("token by token", jump_forward=False)[1]])
    print_saved(*states)
