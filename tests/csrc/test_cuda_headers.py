# SPDX-License-Identifier: Apache-2.0
"""What the shim believes of CUDA's and cuBLASLt's ABI against NVIDIA's own headers, where there are any.

They are in the wheels nvidia-cuda-runtime-cu12 and nvidia-cublas-cu12, which a torch for GPUs brings along, or in a
folder named by GHT_CUDA_INCLUDE (several by colons).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.csrc.build import CSRC

CUDA = (CSRC / "shim" / "cuda_api.h").read_text()
CUBLASLT = (CSRC / "shim" / "cublaslt_api.h").read_text()
HANDLES = re.compile(r"\*|gh_cu_(context|stream|event|pool)\b|gh_lt_(handle|product|layout|wish)\b")
EQUAL = {
    "GH_CU_SUCCESS": "CUDA_SUCCESS",
    "GH_CU_OUT_OF_MEMORY": "CUDA_ERROR_OUT_OF_MEMORY",
    "GH_CU_NOT_INITIALIZED": "CUDA_ERROR_NOT_INITIALIZED",
    "GH_CU_NOT_READY": "CUDA_ERROR_NOT_READY",
    "GH_CU_CAPTURE_NONE": "CU_STREAM_CAPTURE_STATUS_NONE",
    "GH_CU_MODE_RELAXED": "CU_STREAM_CAPTURE_MODE_RELAXED",
    "GH_CU_NON_BLOCKING": "CU_STREAM_NON_BLOCKING",
    "GH_CU_MAJOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "GH_CU_MINOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    "GH_CU_POOLS": "CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED",
    "1": "CU_MEM_ALLOCATION_TYPE_PINNED",
    "0": "CU_MEM_HANDLE_TYPE_NONE",
    "1u": "CU_MEM_LOCATION_TYPE_DEVICE",
    "sizeof(struct gh_cu_pool_is)": "sizeof(CUmemPoolProps)",
    "offsetof(struct gh_cu_pool_is, device)": "offsetof(CUmemPoolProps, location.id)",
    "offsetof(struct gh_cu_pool_is, security)": "offsetof(CUmemPoolProps, win32SecurityAttributes)",
    "sizeof(gh_cu_memory)": "sizeof(CUdeviceptr)",
    "16u": "sizeof(CUuuid)",
    "GH_LT_SUCCESS": "CUBLAS_STATUS_SUCCESS",
    "GH_LT_NO_MEMORY": "CUBLAS_STATUS_ALLOC_FAILED",
    "GH_LT_COMPUTE_32F": "CUBLAS_COMPUTE_32F",
    "GH_LT_TRANSPOSED": "CUBLAS_OP_T",
    "GH_LT_TRANS_A": "CUBLASLT_MATMUL_DESC_TRANSA",
    "GH_LT_TRANS_B": "CUBLASLT_MATMUL_DESC_TRANSB",
    "GH_LT_WORKSPACE": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
    "GH_LT_REDUCTIONS": "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK",
    "GH_LT_IN_COMPUTE_TYPE": "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE",
    "GH_LT_R_32F": "CUDA_R_32F",
    "GH_LT_R_16F": "CUDA_R_16F",
    "GH_LT_R_16BF": "CUDA_R_16BF",
    "GH_LT_R_8F_E4M3": "CUDA_R_8F_E4M3",
    "sizeof(struct gh_lt_algorithm)": "sizeof(cublasLtMatmulAlgo_t)",
    "sizeof(struct gh_lt_found)": "sizeof(cublasLtMatmulHeuristicResult_t)",
    "offsetof(struct gh_lt_found, workspace)": "offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize)",
    "offsetof(struct gh_lt_found, status)": "offsetof(cublasLtMatmulHeuristicResult_t, state)",
}


def folders() -> list[Path]:
    """Where headers are to be looked for, the ones that were asked for first."""
    asked = [Path(part) for part in os.environ.get("GHT_CUDA_INCLUDE", "").split(":") if part]
    wheels = [found for part in sys.path for found in sorted(Path(part).glob("nvidia/*/include"))]
    return [path for path in (*asked, *wheels, Path("/usr/local/cuda/include")) if path.is_dir()]


def calls(header: str, kind: str) -> list[str]:
    """A call of each function of a macro list, with arguments of the types that we give it."""
    table = header[header.index(f"#define GH_{kind}_FUNCTIONS(F)") :].split("\n\n")[0].replace("\\\n", " ")
    found = re.findall(r'F\(\w+,\s*"(\w+)",(?:\s*"\w*",)?\s*\w+,\s*\(((?:[^()]|\([^()]*\))*)\)\)', table)
    made = []
    for symbol, parameters in found:
        given = []
        for parameter in parameters.split(","):
            if parameter.strip() == "void":
                continue
            declared = re.sub(r"\w+$", "", parameter.strip()).strip()
            given.append("nothing" if HANDLES.search(declared) else f"({declared})number")
        made.append(f"    (void){symbol}({', '.join(given)});")
    assert len(made) == len(re.findall(r"\bF\(\w+, \"", table)) > 10
    return made


def test_numbers_sizes_and_signatures_are_those_of_the_headers(tmp_path: Path) -> None:
    places = folders()
    if not any((place / "cuda.h").exists() for place in places):
        pytest.skip("no cuda.h here; try pip install nvidia-cuda-runtime-cu12 nvidia-cublas-cu12")
    if not any((place / "cublasLt.h").exists() for place in places):
        pytest.skip("no cublasLt.h here; try pip install nvidia-cublas-cu12")
    source = tmp_path / "headers.c"
    asserts = [
        f'_Static_assert((long)({ours}) == (long)({theirs}), "{theirs}");' for ours, theirs in EQUAL.items()
    ]  # fmt: skip
    lines = [
        "#include <stddef.h>", "#include <cuda.h>", "#include <cublasLt.h>", '#include "shim/cublaslt_api.h"',
        *asserts, "void all(void *nothing, long number);", "void all(void *nothing, long number)", "{",
        *calls(CUDA, "CUDA"), *calls(CUBLASLT, "CUBLASLT"), "}",
    ]  # fmt: skip
    # A symbol's newer version that these headers do not have is left out: its older form is what is looked up then.
    known = "".join(
        path.read_text(errors="replace") for place in places for path in [place / "cuda.h"] if path.exists()
    )
    lines = [line for line in lines if "cuEventElapsedTime_v2" not in line or "cuEventElapsedTime_v2" in known]
    source.write_text("\n".join(lines) + "\n")
    command = ["cc", "-std=gnu11", "-Wall", "-Werror", "-Wconversion", "-fsyntax-only", f"-I{CSRC}"]
    done = subprocess.run(
        [*command, *(f"-isystem{place}" for place in places), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
