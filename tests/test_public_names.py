"""The names that others write programs against."""
from __future__ import annotations

import inspect
import subprocess
import sys

import ramet

NAMES = """
    function gen gen_as gen_int gen_string select system user assistant system_begin system_end user_begin user_end assistant_begin assistant_end
    image video separate_reasoning Runtime Engine RuntimeEndpoint OpenAI Fake set_default_backend flush_cache get_server_info
    ProgramState Program token_length_normalized greedy_token_selection unconditional_likelihood_normalized ChoicesSamplingMethod ChoicesDecision
    RametError RequestError
""".split()


def test_every_public_name_is_there():
    for name in NAMES:
        assert getattr(ramet, name) is not None
        assert name in ramet.__all__ and name in dir(ramet)


def test_all_names_resolve():
    for name in ramet.__all__:
        assert getattr(ramet, name) is not None


def test_states_and_programs_have_their_methods():
    for name in ("get_var set_var text messages sync error get_meta_info text_iter text_async_iter system user assistant var_scope fork copy "
                 "cancel call draw").split():  # fmt: skip
        assert callable(getattr(ramet.ProgramState, name))
    for name in "run arun run_batch bind trace cache compile draw".split():
        assert callable(getattr(ramet.Program, name))


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_gen_takes_sglangs_parameters_in_its_order():
    assert parameters(ramet.gen)[:23] == (
        "name max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty ignore_eos "
        "return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs dtype choices choices_method regex json_schema"
    ).split()
    assert parameters(ramet.select)[:4] == ["name", "choices", "temperature", "choices_method"]


def test_run_takes_sglangs_parameters():
    run = set(parameters(ramet.Program.run))
    assert run >= set(
        "max_new_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty ignore_eos return_logprob "
        "logprob_start_len top_logprobs_num return_text_in_logprobs stream backend use_thread".split()
    )
    assert set(parameters(ramet.Program.run_batch)) >= set("batch_kwargs num_threads progress_bar generator_style".split())


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
