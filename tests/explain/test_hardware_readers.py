"""NCCL logs and tests, nvidia-smi, PCIe and kernel lines, model configs."""

from __future__ import annotations

import json

import pytest
from case_texts import CASES
from reading import everything, only_run, values

from alula.profile.quantities import Quantity as Q


def nccl(rank: int, *messages: str, ranks: int = 2) -> str:
    prefix = f"node7:{581 + rank}:{900 + rank} [{rank}] NCCL INFO "
    init = f"ncclCommInitRank comm 0x26bafab0 rank {rank} nranks {ranks} cudaDev {rank} nvmlDev {rank} busId 6000 commId 0x27da - Init COMPLETE"
    return "".join(f"{prefix}{message}\n" for message in (init, *messages))


def test_variables_are_seen_per_rank() -> None:
    run = only_run(
        nccl(0, "NCCL_PROTO set by environment to simple", "NCCL_BUFFSIZE set by environment to 8388608.", ranks=3) + nccl(1, "NCCL_PROTO set by environment to LL", ranks=3)
        + nccl(2, ranks=3)
    )  # fmt: skip
    assert values(run, Q.VARIABLE_SEEN, name="NCCL_PROTO", rank=0) == ["simple"]
    assert values(run, Q.VARIABLE_SEEN, name="NCCL_PROTO", rank=1) == ["LL"]
    assert values(run, Q.VARIABLE_SEEN, name="NCCL_BUFFSIZE") == ["8388608"]
    assert [one.scope.rank for one in run.all(Q.NCCL_RANK_LOGGED)] == [0, 1, 2]
    assert run.yes(Q.NCCL_ENV_LOGGED) is True
    assert run.number(Q.NUM_GPUS) == 3


def test_a_log_without_environment_lines_does_not_claim_them() -> None:
    assert not only_run(nccl(0)).all(Q.NCCL_ENV_LOGGED)


def test_prefixes_of_engines_and_of_ray_are_stepped_over() -> None:
    run = only_run(
        "(RayWorkerWrapper pid=581, ip=10.0.0.1) node7:581:581 [0] NCCL INFO NCCL_PROTO set by environment to LL [repeated 2x across cluster]\n"
    )
    assert values(run, Q.VARIABLE_SEEN, name="NCCL_PROTO") == ["LL"]


@pytest.mark.parametrize(
    ("channel", "transport"),
    [
        ("Channel 00 : 2[a000] -> 3[b000] via P2P/direct pointer", "P2P"),
        ("Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer/read", "P2P"),
        ("Channel 00/0 : 5[5] -> 6[6] via P2P/IPC", "P2P"),
        ("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P"),
        ("Channel 00 : 1[1] -> 0[0] via SHM/direct/direct", "SHM"),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/IB/0/GDRDMA", "NET"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0", "NET"),
    ],
)
def test_transports_of_every_version(channel: str, transport: str) -> None:
    assert values(only_run(nccl(0, channel)), Q.NCCL_TRANSPORT) == [transport]


@pytest.mark.parametrize(
    ("message", "size", "algorithm", "protocol"),
    [
        ("8589934592 Bytes -> Algo 1 proto 2 time 86069.968750", 8589934592, "Ring", "Simple"),
        ("AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0} comm 0x55a7a339db50", 4, "Tree", "LL"),
        ("AllReduce: 65536 Bytes -> Algo Tree proto LL128 channel{Lo..Hi}={0..1}", 65536, "Tree", "LL128"),
        ("AllReduce: 14336 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}", 14336, "Ring", "Simple"),
    ],
)
def test_tuning_lines_alone_prove_a_protocol(message: str, size: int, algorithm: str, protocol: str) -> None:
    run = only_run(nccl(0, message))
    assert run.text(Q.NCCL_PROTOCOL, num_bytes=size) == protocol
    assert run.text(Q.NCCL_ALGORITHM, num_bytes=size) == algorithm


def test_other_collectives_are_no_all_reduce() -> None:
    assert not only_run(nccl(0, "AllGather: 65536 Bytes -> Algo Ring proto LL channel{Lo..Hi}={0..1}")).all(
        Q.NCCL_PROTOCOL
    )


def test_facts_of_the_library() -> None:
    run = only_run(
        nccl(
            0, "NCCL version 2.29.2+cuda12.8", "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels",
            "P2P is disabled between connected GPUs 2 and 3. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
            "NET/OFI Adding NCCL_PROTO=simple to environment", "Pattern 4, crossNic 0, nChannels 2, bw 0.1/0.1, type SYS/SYS, sameChannels 1",
        )
    )  # fmt: skip
    assert (run.text(Q.NCCL_VERSION), run.number(Q.NCCL_CHANNELS)) == ("2.29.2+cuda12.8", 2)
    assert run.text(Q.P2P, name="2-3") == "off"
    assert "NCCL_PROTO=simple" in str(run.text(Q.NCCL_PLUGIN))
    assert run.text(Q.FLAG, name="nccl_pattern_4") == "SYS/SYS bw 0.1/0.1"


def test_the_matrix_of_what_may_run() -> None:
    run = only_run(
        nccl(0, "NCCL_PROTO set by environment to simple", "Enabled NCCL Func/Proto/Algo Matrix:")
        + "     Function |       LL     LL128    Simple   |          Tree           Ring  CollNetDirect\n"
        + "    Broadcast |        0         0         1   |             1              1              1\n"
        + "    AllReduce |        0         0         1   |             1              1              1\n"
        + nccl(1, "NCCL_PROTO set by environment to simple")
    )
    assert run.text(Q.FLAG, name="nccl_allreduce_protocols_allowed") == "Simple"
    assert [one.scope.rank for one in run.all(Q.NCCL_RANK_LOGGED)] == [0, 1]


def test_nccl_tests_tables() -> None:
    run = only_run(CASES["12"])
    assert run.number(Q.ALLREDUCE_US, num_bytes=4096) == 19.4
    assert len(run.all(Q.ALLREDUCE_US)) == 3


TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \tPIX\tSYS\tNODE\t0-63,128-191\t0\t\tN/A\n"
    "GPU1\tPIX\t X \tSYS\tNODE\t0-63\t0\t\tN/A\nGPU2\tSYS\tSYS\t X \tPHB\t64-127\t1\t\tN/A\nNIC0\tNODE\tNODE\tPHB\t X \n\nLegend:\n\n  X    = Self\n"
)


def test_a_topology_with_colours_and_network_cards() -> None:
    run = only_run(TOPOLOGY)
    assert {one.scope.name: one.value for one in run.all(Q.LINK)} == {"0-1": "PIX", "0-2": "SYS", "1-2": "SYS"}


def test_a_topology_with_spaces_as_collect_env_prints_it() -> None:
    run = only_run(
        "GPU Topology:\n        GPU0    GPU1    CPU Affinity\nGPU0     X      NV18    0-31\nGPU1    NV18     X      0-31\n"
    )
    assert values(run, Q.LINK, name="0-1") == ["NV18"]


def test_peer_access_with_reasons() -> None:
    run = only_run(
        " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tCNS\t\n GPU1\tOK\tX\tNS\t\n GPU2\tCNS\tNS\tX\t\n\nLegend:\n  OK  = Status Ok\n"
    )
    assert {one.scope.name: one.value for one in run.all(Q.P2P)} == {"0-1": "ok", "0-2": "off", "1-2": "off"}
    assert run.text(Q.P2P_REASON, name="0-2") == "chipset not supported"


QUERY = """==============NVSMI LOG==============

Driver Version                            : 580.126.09
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:01:00.0
    Product Name                          : NVIDIA RTX PRO 6000
    {reasons}
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 165687 us
    Utilization
        Gpu                               : 98 %
    Temperature
        GPU Current Temp                  : 61 C
    GPU Power Readings
        Instantaneous Power Draw          : 250.10 W
        Current Power Limit               : 600.00 W
    Clocks
        Graphics                          : 2000 MHz
        SM                                : 1410 MHz
    Max Clocks
        SM                                : 2430 MHz
GPU 00000000:02:00.0
    Clocks
        SM                                : 2300 MHz
"""


@pytest.mark.parametrize("reasons", ["Clocks Event Reasons", "Clocks Throttle Reasons"])
def test_a_query_of_all_gpus(reasons: str) -> None:
    run = only_run(QUERY.format(reasons=reasons))
    assert (run.text(Q.DRIVER), run.text(Q.CUDA), run.number(Q.NUM_GPUS)) == ("580.126.09", "13.0", 2)
    assert [run.number(Q.CLOCK_MHZ, rank=at) for at in (0, 1)] == [1410, 2300]
    assert (
        run.number(Q.CLOCK_MAX_MHZ, rank=0),
        run.number(Q.POWER_W, rank=0),
        run.number(Q.POWER_LIMIT_W, rank=0),
    ) == (2430, 250.1, 600)
    assert run.yes(Q.THROTTLE, name="SW Power Cap", rank=0) is True
    assert run.yes(Q.THROTTLE, name="HW Thermal Slowdown", rank=0) is True
    assert run.yes(Q.THROTTLE, name="HW Slowdown", rank=0) is False
    assert run.number(Q.THROTTLE_US, name="SW Power Capping") == 165687
    assert run.number(Q.UTILISATION, rank=0) == pytest.approx(0.98)


def test_dmon_and_csv() -> None:
    run = only_run(CASES["61"])
    assert (run.number(Q.CLOCK_MHZ, rank=0), run.number(Q.POWER_W, rank=0)) == (750.5, 14.0)
    run = only_run(
        "index, name, clocks.current.sm [MHz], clocks.max.sm [MHz], power.draw [W], clocks_throttle_reasons.sw_power_cap\n"
        "0, NVIDIA H200, 1980 MHz, 1980 MHz, 310.1 W, Not Active\n1, NVIDIA H200, 611 MHz, 1980 MHz, 14.0 W, Active\n"
    )
    assert [run.number(Q.CLOCK_MHZ, rank=at) for at in (0, 1)] == [1980, 611]
    assert run.yes(Q.THROTTLE, rank=1) is True


def test_the_first_table_of_nvidia_smi() -> None:
    run = only_run(
        "| NVIDIA-SMI 560.94                 Driver Version: 560.94         CUDA Version: 12.6     |\n|-----------------------------------------+\n"
        "|   0  NVIDIA RTX A6000             WDDM  |   00000000:01:00.0 Off |                  Off |\n"
        "| 30%   45C    P2             70W /  300W |   20000MiB /  49140MiB |     97%      Default |\n"
    )
    assert (run.text(Q.DRIVER_MODEL), run.text(Q.DRIVER), run.number(Q.POWER_W, rank=0)) == ("WDDM", "560.94", 70)


@pytest.mark.parametrize(
    ("line", "quantity", "expected"),
    [
        ("\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+", Q.ACS_REDIRECT, True),
        ("\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd-", Q.ACS_REDIRECT, False),
        ("BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet iommu=pt", Q.IOMMU, "pt"),
        ("BOOT_IMAGE=/vmlinuz ro amd_iommu=off", Q.IOMMU, "off"),
        ("iommu: Default domain type: Translated", Q.IOMMU, "on"),
        ('RegistryDwords: "ForceP2P=0x11;RMForceP2PType=1;"', Q.FLAG, "ForceP2P=0x11;RMForceP2PType=1;"),
        ("SM clock 611-890 MHz under load, power 14 W", Q.CLOCK_MHZ, 750.5),
    ],
)
def test_host_lines(line: str, quantity: Q, expected: object) -> None:
    assert [one.value for one in everything(line + "\n") if one.quantity is quantity] == [expected]


def test_configs_of_targets_and_heads() -> None:
    target = only_run(json.dumps({
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi",
        "text_config": {"hidden_size": 7168, "num_hidden_layers": 61, "n_routed_experts": 384, "num_experts_per_tok": 8, "vocab_size": 163840},
    }))  # fmt: skip
    assert target.text(Q.ARCHITECTURE) == "KimiK25ForConditionalGeneration"
    assert [target.number(one) for one in (Q.HIDDEN_SIZE, Q.NUM_LAYERS, Q.NUM_EXPERTS, Q.EXPERTS_PER_TOKEN)] == [
        7168,
        61,
        384,
        8,
    ]
    head = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 7168, "draft_vocab_size": 32000}
    assert only_run(json.dumps(head)).yes(Q.AUX_LAYERS_GUESSED) is True
    known = only_run(json.dumps(head | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}}))
    assert known.text(Q.AUX_LAYERS) == "2,30,58"
    assert not known.all(Q.AUX_LAYERS_GUESSED)


def test_server_information_of_sglang() -> None:
    document = {
        "model_path": "org/m", "tp_size": 8, "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "version": "0.5.10",
        "disable_cuda_graph": False, "internal_states": [{"avg_spec_accept_length": 2.31, "last_gen_throughput": 100.0}],
    }  # fmt: skip
    run = only_run(json.dumps(document))
    assert (run.text(Q.ENGINE_VERSION), run.number(Q.TP), run.number(Q.TOKENS_PER_CYCLE)) == ("0.5.10", 8, 2.31)
    assert (
        only_run(json.dumps(document | {"speculative_algorithm": None, "internal_states": []})).text(Q.ALGORITHM)
        == "none"
    )


def test_lists_of_gpus_and_versions() -> None:
    run = only_run(
        "GPU models and configuration:\nGPU 0: NVIDIA H200\nGPU 1: NVIDIA H200\nNvidia driver version: 580.126.09\nvLLM Version: 0.26.1\n"
    )
    assert (run.text(Q.GPU), run.number(Q.NUM_GPUS), run.text(Q.DRIVER), run.text(Q.ENGINE_VERSION)) == (
        "NVIDIA H200",
        2,
        "580.126.09",
        "0.26.1",
    )
    assert only_run("GPU 0,1,2,3: NVIDIA A100-SXM4-80GB\n").number(Q.NUM_GPUS) == 4


def test_a_dispatch_behind_which_nothing_comes_is_the_last_line() -> None:
    dispatch = "b12x PCIe oneshot allreduce backend ready, first dispatch: shape=(1, 4096) dtype=bf16 bytes=8192\n"
    assert only_run(dispatch + "\n\n").all(Q.LAST_LINE)
    assert not only_run(dispatch + "and on it goes\n").all(Q.LAST_LINE)
