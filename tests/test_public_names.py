"""The names that others write programs against."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import ramet

NAMES = """
    function gen gen_as gen_int gen_string select system user assistant system_begin system_end user_begin user_end assistant_begin
    assistant_end image video separate_reasoning Runtime Engine RuntimeEndpoint OpenAI Fake set_default_backend flush_cache
    get_server_info ProgramState Program token_length_normalized greedy_token_selection unconditional_likelihood_normalized
    ChoicesSamplingMethod ChoicesDecision RametError RequestError
"""
STATE = """
    get_var set_var text messages sync error get_meta_info text_iter text_async_iter system user assistant var_scope fork copy cancel call
    draw
"""
PROGRAM = "run arun run_batch bind trace cache compile draw"
GEN = """
    name max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty ignore_eos
    return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs dtype choices choices_method regex json_schema
"""
RUN = """
    max_new_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty ignore_eos
    return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs stream backend use_thread
"""


def test_every_public_name_is_there():
    for name in NAMES.split():
        assert getattr(ramet, name) is not None
        assert name in ramet.__all__ and name in dir(ramet)


def test_all_names_resolve():
    for name in ramet.__all__:
        assert getattr(ramet, name) is not None


def test_states_and_programs_have_their_methods():
    for name in STATE.split():
        assert callable(getattr(ramet.ProgramState, name))
    for name in PROGRAM.split():
        assert callable(getattr(ramet.Program, name))


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_gen_takes_sglangs_parameters_in_its_order():
    names = GEN.split()
    assert parameters(ramet.gen)[: len(names)] == names
    assert parameters(ramet.select)[:4] == ["name", "choices", "temperature", "choices_method"]


def test_run_takes_sglangs_parameters():
    assert set(parameters(ramet.Program.run)) >= set(RUN.split())
    assert set(parameters(ramet.Program.run_batch)) >= {"batch_kwargs", "num_threads", "progress_bar", "generator_style"}


def test_importing_is_cheap():
    code = (
        "import sys, time; t = time.perf_counter(); import ramet; s = time.perf_counter() - t;"
        "heavy = {'torch', 'numpy', 'transformers', 'pydantic', 'rich', 'greenlet', 'httpx', 'openai'} & set(sys.modules);"
        "assert not heavy, heavy; ramet.function, ramet.gen; assert 'torch' not in sys.modules; print(s)"
    )
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    assert min(times) < 0.15


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(ramet, "nonsense")
    with pytest.raises(AttributeError, match="OpenAI's API"):
        _ = ramet.Anthropic
