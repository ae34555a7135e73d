"""Commands, variables and config files in the shapes in which people show them."""

from __future__ import annotations

import pytest
from reading import everything, only_run, read, runs, values

from alula.profile.quantities import Quantity as Q


def test_a_pasted_shell_command_over_several_lines() -> None:
    run = only_run(
        "$ NCCL_PROTO=LL NCCL_P2P_LEVEL=SYS python3 -m sglang.launch_server --model-path org/Kimi-K2.5 --tp 8 \\\n  --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path 'org/head' \\\n  --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 \\\n"
        "  --cuda-graph-max-bs 8 --disable-custom-all-reduce\n"
    )
    assert (run.text(Q.MODEL), run.text(Q.DRAFT_MODEL), run.text(Q.ALGORITHM)) == (
        "org/Kimi-K2.5",
        "org/head",
        "EAGLE3",
    )
    assert (
        run.number(Q.TP),
        run.number(Q.STEPS),
        run.number(Q.NUM_DRAFT_TOKENS),
        run.number(Q.GRAPH_MAX_REQUESTS),
    ) == (8, 2, 3, 8)
    assert run.yes(Q.CUSTOM_ALLREDUCE_DISABLED) is True
    assert run.text(Q.VARIABLE_PLANNED, name="NCCL_PROTO") == "LL"
    assert run.text(Q.VARIABLE_PLANNED, name="NCCL_P2P_LEVEL") == "SYS"


def test_lines_that_lost_their_backslashes() -> None:
    run = only_run(
        "vllm serve org/m-70b\n  --tensor-parallel-size 4\n  --max-num-seqs=16\n\nsome words --behind it\n"
    )
    assert (run.number(Q.TP), run.number(Q.MAX_RUNNING)) == (4, 16)


def test_docker_with_variables_and_json() -> None:
    run = only_run(
        "docker run --gpus all -e NCCL_PROTO=LL -e HF_TOKEN=hf_secret \\\n -v /x:/y vllm/vllm-openai:v0.11.0 \\\n --model org/DeepSeek-R1 -tp 8 \\\n"
        ' --speculative-config \'{"method": "eagle3", "model": "org/h", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}\' \\\n'
        ' -O \'{"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [1, 2, 4, 24]}\' --api-key abcdef\n'
    )
    assert (run.number(Q.STEPS), run.number(Q.DRAFT_TP), run.text(Q.ALGORITHM)) == (3, 1, "eagle3")
    assert (run.text(Q.GRAPH_MODE), run.number(Q.GRAPH_MAX_TOKENS)) == ("piecewise", 24)
    assert run.text(Q.VARIABLE_PLANNED, name="NCCL_PROTO") == "LL"
    assert "abcdef" not in str(run.text(Q.COMMAND))
    assert all("hf_secret" not in str(one.value) for one in run)


def test_each_server_command_is_a_run_and_a_client_belongs_to_the_last() -> None:
    plain, spec = runs(
        "vllm serve org/m1 -tp 8 --cuda-graph-sizes=32\nvllm serve org/m1 -tp 8 --cuda-graph-sizes=32 --speculative-config "
        '\'{"num_speculative_tokens": 1, "method": "deepseek_mtp"}\' -O.cudagraph_mode=PIECEWISE\n'
        "vllm bench serve --dataset-name random --max-concurrency 32 --random-input-len 2048 --random-output-len 1024 --temperature 0\n"
    )
    assert (plain.text(Q.ALGORITHM), spec.text(Q.ALGORITHM)) == ("none", "deepseek_mtp")
    assert (
        spec.text(Q.DATASET),
        spec.number(Q.CONCURRENCY),
        spec.number(Q.INPUT_TOKENS),
        spec.number(Q.TEMPERATURE),
    ) == ("random", 32, 2048, 0)
    assert not plain.all(Q.DATASET)


def test_exports_belong_to_the_command_behind_them() -> None:
    first, second = runs(
        "export NCCL_PROTO=LL\nvllm serve org/m1 -tp 2\nexport NCCL_PROTO=Simple\nvllm serve org/m2 -tp 2\n"
    )
    assert values(first, Q.VARIABLE_PLANNED, name="NCCL_PROTO") == ["LL"]
    assert values(second, Q.VARIABLE_PLANNED, name="NCCL_PROTO") == ["Simple"]


@pytest.mark.parametrize(
    "text",
    [
        "we run vllm serve on this box and it is slow\n",
        "sglang.launch_server crashes\n",
        "see `vllm serve --help`\n",
    ],
)
def test_prose_is_no_command(text: str) -> None:
    assert not [one for one in everything(text) if one.quantity in (Q.COMMAND, Q.MODEL, Q.ALGORITHM)]


@pytest.mark.parametrize(
    "line",
    ["export NCCL_PROTO=LL", "      - NCCL_PROTO=LL", "      NCCL_PROTO: LL", '      NCCL_PROTO: "LL"', "ENV NCCL_PROTO=LL", "ENV NCCL_PROTO LL",
     'os.environ["NCCL_PROTO"] = "LL"', "os.environ.setdefault('NCCL_PROTO', 'LL')", "NCCL_PROTO=LL", "  -e NCCL_PROTO=LL", "NCCL_PROTO=LL   # why",
     'env = {"NCCL_PROTO": "LL"}'],
)  # fmt: skip
def test_every_way_to_set_a_variable(line: str) -> None:
    found = [one for one in everything(f"# file\n{line}\n# end\n") if one.quantity is Q.VARIABLE_PLANNED]
    assert [(one.scope.name, str(one.value).split("#")[0].strip()) for one in found] == [("NCCL_PROTO", "LL")]


def test_env_output_was_seen_in_a_process() -> None:
    run = only_run(
        "SHELL=/bin/bash\nPWD=/root\nNCCL_PROTO=LL\nHF_TOKEN=abc\nHOME=/root\nVLLM_API_KEY=abc\nPATH=/usr/bin\n"
    )
    assert values(run, Q.VARIABLE_SEEN, name="NCCL_PROTO") == ["LL"]
    assert run.yes(Q.ENVIRONMENT_READ) is True
    assert not any("abc" in str(one.value) for one in run)


def test_a_process_environment_with_nul_bytes() -> None:
    run = only_run(b"PATH=/bin\0NCCL_PROTO=LL\0HF_TOKEN=abc\0CUDA_VISIBLE_DEVICES=0,1\0", "/proc/4711/environ")
    assert values(run, Q.VARIABLE_SEEN, worker="pid=4711") == ["LL", "0,1"]
    assert run.yes(Q.ENVIRONMENT_READ, worker="pid=4711") is True


def test_variables_inside_other_words_are_none() -> None:
    assert not everything(
        "set NCCL_PROTO to something, see MY_NCCL_PROTO=LL or $NCCL_PROTO\nexport NCCL_PROTO=$OTHER\n"
    )


COMPOSE = """services:
  vllm:
    image: vllm/vllm-openai:v0.20.0
    environment:
      - NCCL_PROTO=LL
      - HF_TOKEN=abc
    command: >
      --model org/model-7b --tensor-parallel-size 4
      --speculative-config '{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}'
  sglang:
    image: lmsysorg/sglang:latest
    environment:
      NCCL_P2P_DISABLE: 1
    command: ["python3", "-m", "sglang.launch_server", "--model-path", "org/model-7b", "--tp", "2"]
"""


@pytest.mark.parametrize("text", [COMPOSE, f"My file:\n\n```yaml\n{COMPOSE}```\nThanks\n"])
def test_a_compose_file_alone_and_in_markdown(text: str) -> None:
    vllm, sglang = (run for run in runs(text) if run.all(Q.COMMAND))
    assert (vllm.number(Q.TP), vllm.number(Q.STEPS), vllm.text(Q.ALGORITHM)) == (4, 3, "eagle3")
    assert (sglang.number(Q.TP), sglang.text(Q.ALGORITHM), sglang.text(Q.MODEL)) == (2, "none", "org/model-7b")
    assert sglang.text(Q.VARIABLE_PLANNED, name="NCCL_P2P_DISABLE") == "1"


def test_a_kubernetes_manifest() -> None:
    run = only_run(
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: server\n    image: lmsysorg/sglang:v0.5\n    args:\n    - --model-path\n    - org/m-7b\n"
        '    - --tp\n    - "4"\n    env:\n    - name: NCCL_PROTO\n      value: LL\n'
    )
    assert (run.number(Q.TP), run.text(Q.VARIABLE_PLANNED, name="NCCL_PROTO")) == (4, "LL")


def test_config_files_of_engines() -> None:
    trt = only_run(
        "cuda_graph_config:\n  max_batch_size: 16\n  enable_padding: true\nspeculative_config:\n  decoding_type: Eagle\n  max_draft_len: 3\n"
        "  speculative_model_dir: org/head\n"
    )
    assert (trt.text(Q.ENGINE), trt.number(Q.STEPS), trt.number(Q.GRAPH_MAX_REQUESTS)) == ("tensorrt-llm", 3, 16)
    vllm = only_run("model: org/m\ntensor-parallel-size: 8\nmax-num-seqs: 4\nenforce-eager: true\n")
    assert (vllm.text(Q.ENGINE), vllm.number(Q.TP), vllm.yes(Q.GRAPHS_DISABLED)) == ("vllm", 8, True)


def test_several_values_and_equals_signs() -> None:
    run = only_run(
        "python -m sglang.launch_server --model-path=org/m-1 --cuda-graph-bs 1 2 4 8 --tp-size=2 --mem-fraction-static 0.8\n"
    )
    assert (run.number(Q.GRAPH_MAX_REQUESTS), run.number(Q.TP)) == (8, 2)


def test_nothing_of_a_secret_reaches_the_sink() -> None:
    sink = read(
        "vllm serve org/m-1 --api-key sk-verysecret1 --hf-token=hf_verysecret2 -tp 2\nexport VLLM_API_KEY=verysecret3\n"
    )
    assert "verysecret" not in repr([(one.value, one.scope) for run in sink.runs() for one in run])


def test_engines_started_from_python() -> None:
    plain, spec, sglang = runs(
        "from vllm import LLM\nllm = LLM(model='org/m-8b', tensor_parallel_size=2)\nllm = LLM(\n    model='org/m-8b',  # the target\n    tensor_parallel_size=2,\n"
        "    speculative_config={'method': 'eagle3', 'model': 'org/h', 'num_speculative_tokens': 3},\n    max_num_seqs=args.batch,\n)\n"
        "engine = sgl.Engine(model_path='org/m-8b', tp_size=4, speculative_algorithm='EAGLE3', speculative_num_steps=5)\n"
    )
    assert (plain.text(Q.ALGORITHM), plain.number(Q.TP)) == ("none", 2)
    assert (spec.text(Q.ALGORITHM), spec.number(Q.STEPS), spec.all(Q.MAX_RUNNING)) == ("eagle3", 3, ())
    assert (sglang.text(Q.ENGINE), sglang.number(Q.STEPS), sglang.number(Q.TP)) == ("sglang", 5, 4)


def test_flags_with_dots() -> None:
    run = only_run("vllm serve org/m-1 --speculative-config.method eagle3 --speculative-config.model org/h --speculative-config.num_speculative_tokens 3 "
                   "--compilation-config.cudagraph_mode FULL\n")  # fmt: skip
    assert (run.text(Q.ALGORITHM), run.number(Q.STEPS), run.text(Q.DRAFT_MODEL), run.text(Q.GRAPH_MODE)) == (
        "eagle3",
        3,
        "org/h",
        "full",
    )


def test_flags_as_a_list_of_bullets() -> None:
    run = only_run(
        "I use:\n\n- `--speculative-algorithm EAGLE3`\n- `--speculative-num-steps 3`\n- `--cuda-graph-max-bs 4`\n\nand it is slow.\n"
    )
    assert (run.text(Q.ALGORITHM), run.number(Q.STEPS), run.number(Q.GRAPH_MAX_REQUESTS)) == ("EAGLE3", 3, 4)


def test_a_unit_file_and_a_batch_script() -> None:
    unit = only_run(
        '[Service]\nEnvironment="NCCL_PROTO=LL"\nEnvironment=NCCL_ALGO=Ring\nExecStart=/opt/bin/vllm serve org/m-7b --tensor-parallel-size 2\n'
    )
    assert {one.scope.name: one.value for one in unit.all(Q.VARIABLE_PLANNED)} == {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
    }
    assert unit.number(Q.TP) == 2
    batch = only_run(
        "srun --ntasks=8 \\\n  --export=ALL,NCCL_PROTO=LL \\\n  python -m sglang.launch_server --model-path org/m1 --tp 16\n"
    )
    assert (batch.text(Q.VARIABLE_PLANNED, name="NCCL_PROTO"), batch.number(Q.TP)) == ("LL", 16)


def test_a_script_that_sets_its_path_is_no_environment_and_nul_bytes_alone_make_none() -> None:
    run = only_run("PATH=$PATH:/opt/bin\nPATH=/usr/bin\nNCCL_PROTO=LL\n./start.sh\n")
    assert run.all(Q.VARIABLE_PLANNED, name="NCCL_PROTO")
    assert not run.all(Q.ENVIRONMENT_READ)
    found = everything(
        b"\0\0\0\0some words, NCCL_PROTO too\0more of a log that was rotated\nline two of it\nline three of the log\n"
        + b"text\n" * 50
    )
    assert not [one for one in found if one.quantity is Q.ENVIRONMENT_READ]
