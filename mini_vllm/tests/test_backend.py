"""The backend and the doctor: which BLAS is chosen, with fakes; and that it is really used, in new processes."""

import functools
import importlib.machinery
import json
import os
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm import backend
from mini_vllm.backend import BlasInfo
from mini_vllm.benchmark.machine import measure_gflops
from mini_vllm.cli import doctor, main

on_linux_cpu = pytest.mark.skipif(backend.mlx_build() != "cpu", reason="MLX needs no BLAS here")


# ---- the choice, with fakes


class FakeLoader:
    """A fake of ``ctypes`` that knows some libraries and their symbols, and records what was loaded and how."""

    RTLD_LOCAL, RTLD_GLOBAL = 0, 256
    c_char_p = str

    def __init__(self, **symbols_of):
        self.symbols_of = symbols_of
        self.loaded = []

    def CDLL(self, path, mode):
        name = os.path.basename(path).partition(".so")[0]
        if name not in self.symbols_of:
            raise OSError(f"{path}: cannot open shared object file")
        self.loaded.append((name, "global" if mode == self.RTLD_GLOBAL else "local"))
        return SimpleNamespace(**self.symbols_of[name])


BLAS = {"cblas_sgemm": object()}


@pytest.fixture
def linux_cpu(monkeypatch):
    """Simulate Linux with MLX for the CPU: nothing imported, no setting, and no package that contains a BLAS."""
    monkeypatch.setattr(backend, "mlx_build", lambda: "cpu")
    monkeypatch.setattr(backend, "package_folders", lambda name: [])
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    for variable in ("MINI_VLLM_BLAS",):
        monkeypatch.setenv(variable, "")  # so that what the test sets is undone after it
        monkeypatch.delenv(variable)
    return monkeypatch


def use(monkeypatch, **symbols_of):
    loader = FakeLoader(**symbols_of)
    monkeypatch.setattr(backend, "ctypes", loader)
    return loader


def install_nvpl(monkeypatch, folder):
    monkeypatch.setattr(backend, "package_folders", lambda name: [folder / name] if name == "nvpl" else [])


NVPL = {"libgomp": {}, "libnvpl_blas_core": {}, "libnvpl_blas_lp64_gomp": BLAS, "libnvpl_blas_lp64_seq": BLAS}


@pytest.mark.parametrize("build", ["metal", "cuda"])
def test_where_mlx_has_its_own_kernels_nothing_is_loaded(linux_cpu, build):
    linux_cpu.setattr(backend, "mlx_build", lambda: build)
    linux_cpu.setenv("MINI_VLLM_BLAS", "/no/such/library.so")
    loader = use(linux_cpu, libopenblas=BLAS)
    blas = backend.choose_blas()
    assert (blas.name, blas.path, loader.loaded) == (build, None, [])


def test_nvpl_comes_before_openblas_and_its_parts_load_in_order(linux_cpu, tmp_path):
    install_nvpl(linux_cpu, tmp_path)
    loader = use(linux_cpu, libopenblas=BLAS, **NVPL)
    blas = backend.choose_blas()
    assert blas == BlasInfo("nvpl", str(tmp_path / "nvpl/lib/libnvpl_blas_lp64_gomp.so.0"), "package nvpl-blas")
    assert loader.loaded == [("libgomp", "global"), ("libnvpl_blas_core", "global"),
                             ("libnvpl_blas_lp64_gomp", "local"), ("libnvpl_blas_lp64_gomp", "global")]


def test_without_libgomp_the_sequential_nvpl_serves(linux_cpu, tmp_path):
    install_nvpl(linux_cpu, tmp_path)
    loader = use(linux_cpu, **{name: symbols for name, symbols in NVPL.items() if name != "libgomp"})
    blas = backend.choose_blas()
    assert blas.name == "nvpl" and blas.path.endswith("lp64_seq.so.0") and "one thread" in blas.note
    assert ("libnvpl_blas_lp64_gomp", "local") not in loader.loaded, "it would end the process at its first product"


@pytest.mark.parametrize("name", ["libmkl_rt.so.2", "libmkl_rt.so.3", "libmkl_rt.so.12", "libmkl_rt.so"])
def test_mkl_is_found_in_the_prefix_and_comes_before_openblas(linux_cpu, tmp_path, name):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / name).touch()
    linux_cpu.setattr(sys, "prefix", str(tmp_path))
    loader = use(linux_cpu, libopenblas=BLAS, libiomp5={}, libmkl_rt=BLAS)
    assert backend.choose_blas() == BlasInfo("mkl", str(tmp_path / "lib" / name), "package mkl")
    assert loader.loaded[0] == ("libiomp5", "global"), "MKL ends the process if it does not find its OpenMP"


def test_the_systems_openblas_serves_when_there_is_no_package(linux_cpu):
    use(linux_cpu, libopenblas=BLAS)
    assert backend.choose_blas() == BlasInfo("openblas", "libopenblas.so.0", "the system's OpenBLAS")


def test_a_package_that_cannot_be_loaded_is_passed_over(linux_cpu, tmp_path):
    install_nvpl(linux_cpu, tmp_path)
    use(linux_cpu, libopenblas=BLAS)
    assert backend.choose_blas().name == "openblas"


@pytest.mark.parametrize("symbols", [
    {"scipy_cblas_sgemm": object()},
    {"cblas_sgemm64_": object()},
    {**BLAS, "openblas_get_config": type("Config", (), {"__call__": lambda self: b"OpenBLAS 0.3 USE64BITINT"})()},
], ids=["prefixed", "suffixed", "64-bit integers under the plain name"])
def test_an_openblas_that_mlx_cannot_call_is_never_made_visible(linux_cpu, symbols):
    loader = use(linux_cpu, libopenblas=symbols)
    assert backend.choose_blas() == BlasInfo("reference", None, backend.NOT_FOUND)
    assert {mode for _, mode in loader.loaded} == {"local"}


def test_without_any_blas_the_reference_one_is_used_silently(linux_cpu, capfd):
    use(linux_cpu)
    assert backend.choose_blas() == BlasInfo("reference", None, backend.NOT_FOUND)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("value", ["none", "None", " none "])
def test_none_switches_the_search_off(linux_cpu, value):
    linux_cpu.setenv("MINI_VLLM_BLAS", value)
    loader = use(linux_cpu, libopenblas=BLAS)
    assert backend.choose_blas() == BlasInfo("reference", None, backend.SWITCHED_OFF)
    assert loader.loaded == []


def test_an_empty_variable_is_no_wish(linux_cpu):
    linux_cpu.setenv("MINI_VLLM_BLAS", "")
    use(linux_cpu, libopenblas=BLAS)
    assert backend.choose_blas().name == "openblas"


@pytest.mark.parametrize("path, name", [("/opt/libopenblas.so", "openblas"), ("/opt/libmkl_rt.so.2", "mkl"),
                                        ("/opt/libblis.so.4", "custom")])
def test_a_library_named_by_the_user_comes_first(linux_cpu, path, name):
    linux_cpu.setenv("MINI_VLLM_BLAS", path)
    use(linux_cpu, libopenblas=BLAS, libmkl_rt=BLAS, libblis=BLAS, libopenblasp=BLAS)
    assert backend.choose_blas() == BlasInfo(name, path, "named by MINI_VLLM_BLAS")


@pytest.mark.parametrize("path", ["/no/such/library.so", "/opt/libm.so"])
def test_a_library_named_by_the_user_that_cannot_serve_is_an_error(linux_cpu, path):
    linux_cpu.setenv("MINI_VLLM_BLAS", path)
    use(linux_cpu, libopenblas=BLAS, libm={})
    with pytest.raises(ValueError, match=f"MINI_VLLM_BLAS is '{path}'"):
        backend.choose_blas()


def test_after_mlx_it_is_too_late(linux_cpu):
    linux_cpu.setitem(sys.modules, "mlx.core", object())
    loader = use(linux_cpu, libopenblas=BLAS)
    assert backend.choose_blas() == BlasInfo("reference", None, backend.TOO_LATE)
    assert loader.loaded == []


@pytest.mark.real_device("tests the function that is replaced")
def test_the_build_of_mlx_is_told_from_what_is_installed_beside_it(monkeypatch, tmp_path):
    spec = importlib.machinery.ModuleSpec("mlx", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "mlx")]
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "mlx_cpu-0.32.4.dist-info").mkdir()
    assert backend.mlx_build() == "cpu"
    (tmp_path / "mlx_cuda_13-0.32.4.dist-info").mkdir()
    assert backend.mlx_build() == "cuda"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert backend.mlx_build() == "metal"


def test_a_package_that_is_not_installed_has_no_folders():
    assert backend.package_folders("no_such_package_anywhere") == []


def test_blas_info_does_not_change():
    with pytest.raises(FrozenInstanceError):
        backend.blas.name = "other"


# ---- the real thing, each in a new process


REPORT = """
import json
{before}
from mini_vllm.backend import blas, mx
x = mx.random.normal((7, 8192), scale=8192 ** -0.5, key=mx.random.key(0))
weight = mx.random.normal((33, 8192), key=mx.random.key(1))
print(json.dumps({{"name": blas.name, "path": blas.path, "note": blas.note, "product": (x @ weight.T).tolist()}}))
"""


#: What is not passed on: what the search reads, and what this process itself may have set for a BLAS.
OURS = ("MINI_VLLM_BLAS", "OMP_", "KMP_", "MKL_", "OPENBLAS_")


#: A clock that advances by a second whenever it is read, so that measurements end at once.
FAST_CLOCK = "import itertools, time; time.perf_counter = itertools.count().__next__\n"


def run_python(code, **environment):
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
    return subprocess.run([sys.executable, "-c", code], env={**inherited, **environment},
                          capture_output=True, text=True)


@functools.cache
def report(before="", **environment):
    """Return what a new process reports about its BLAS. Processes with the same arguments run once."""
    process = run_python(REPORT.format(before=before), **environment)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return json.loads(process.stdout)


@on_linux_cpu
def test_products_agree_with_and_without_a_fast_blas():
    without, found = report(MINI_VLLM_BLAS="none"), report()
    assert (without["name"], without["path"]) == ("reference", None)
    np.testing.assert_allclose(found["product"], without["product"], atol=1e-4)


@on_linux_cpu
def test_a_wrong_path_stops_the_import_and_is_named():
    process = run_python("import mini_vllm.backend", MINI_VLLM_BLAS="/no/such/library.so")
    last_line = process.stderr.splitlines()[-1]
    assert process.returncode != 0
    assert last_line.startswith("ValueError: MINI_VLLM_BLAS is '/no/such/library.so'"), last_line


@on_linux_cpu
def test_the_blas_that_is_reported_is_the_one_that_serves():
    """Compare products: a fast BLAS splits a long sum into parts, so its results differ from the reference's in their
    last bits."""
    without, found = report(MINI_VLLM_BLAS="none"), report()
    assert (found["product"] == without["product"]) == (found["name"] == "reference"), found["name"]


@on_linux_cpu
def test_mlx_imported_first_is_reported_and_still_right():
    late = report(before="import mlx.core")
    assert (late["name"], late["note"]) == ("reference", backend.TOO_LATE)
    assert late["product"] == report(MINI_VLLM_BLAS="none")["product"], "the reference BLAS should have served"


CHANGES = """
import ctypes, json, os
loaded, load = [], ctypes.CDLL
ctypes.CDLL = lambda *arguments, **options: loaded.append(str(arguments[0])) or load(*arguments, **options)
before = dict(os.environ)
from mini_vllm import backend
new = {key: value for key, value in os.environ.items() if before.get(key) != value}
print(json.dumps({"loaded": loaded, "environment": new, "blas": [backend.blas.name, backend.blas.note],
                  "sum": backend.mx.ones(3).sum().item()}))
"""


@on_linux_cpu
def test_nothing_of_the_process_changes_except_its_blas():
    found, none = (json.loads(run_python(CHANGES, **environment).stdout)
                   for environment in ({}, {"MINI_VLLM_BLAS": "none"}))
    assert found["environment"] == none["environment"] == {} and found["sum"] == none["sum"] == 3
    assert none["loaded"] == [] and bool(found["loaded"]) is (found["blas"][0] != "reference")


# ---- the device


@pytest.mark.real_device("tests the function that is replaced")
def test_the_device_has_a_name_and_a_kind():
    assert backend.is_cpu() == (backend.mx.default_device().type == backend.mx.cpu)
    assert backend.device_name().startswith("cpu (" if backend.is_cpu() else "gpu (")


# ---- the doctor


def test_the_doctor_prints_what_it_found(monkeypatch, tmp_path, hardly_measured, capsys):
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path))
    assert doctor.run_doctor() == 0
    text = capsys.readouterr().out
    for part in ("device", backend.device_name(), backend.mx.__version__, backend.blas.name, "GFLOP/s at 1 row",
                 "GFLOP/s at 64 rows", "GiB", "models", "what to do"):
        assert part in text


DOCTOR = FAST_CLOCK + "import sys; from mini_vllm.cli import main; sys.exit(main(['doctor']))"
#: The system's loader is asked for a library that takes 64-bit integers.
OF_64_BITS = """
import ctypes, types
load = ctypes.CDLL
def config():
    return b"OpenBLAS USE64BITINT"
def loader(path, mode=ctypes.DEFAULT_MODE):
    of_64_bits = types.SimpleNamespace(cblas_sgemm=1, openblas_get_config=config)
    return of_64_bits if path == "/opt/libopenblas64.so" else load(path, mode=mode)
ctypes.CDLL = loader
"""


@on_linux_cpu
@pytest.mark.parametrize("path, before, told", [
    ("/no/such/library.so", "", "cannot open shared object file"),
    ("/", "", "cannot"),
    ("libm.so.6", "", "libm.so.6 has no symbol cblas_sgemm"),
    ("/opt/libopenblas64.so", OF_64_BITS, "takes 64-bit integers, MLX passes 32-bit ones"),
])
def test_the_doctor_says_what_is_wrong_with_a_blas_that_was_asked_for(path, before, told):
    process = run_python(before + DOCTOR, MINI_VLLM_BLAS=path)
    assert (process.returncode, process.stderr) == (1, "")
    first, second, *rows = process.stdout.splitlines()
    assert first.startswith(f"wrong       MINI_VLLM_BLAS is {path!r}, which cannot be used: ") and told in first
    assert second == "            The rest of this report describes the machine without that setting."
    found = report()
    assert f"BLAS        {found['name']}: {found['note']}" in rows
    assert rows[-1].startswith("what to do  unset MINI_VLLM_BLAS")


@on_linux_cpu
def test_other_commands_say_it_in_one_line():
    code = "import sys; from mini_vllm.cli import main; sys.exit(main(['generate', 'x']))"
    process = run_python(code, MINI_VLLM_BLAS="/no/such/library.so")
    assert process.returncode == 2 and process.stderr.startswith("mini-vllm: MINI_VLLM_BLAS is '/no/such/library.so'")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["mlx", "mlx.core"])
def test_without_mlx_every_command_says_how_to_get_it(missing):
    commands = [["doctor"], ["generate", "x"], ["chat"], ["bench", "throughput"]]
    process = run_python(f"import sys; sys.modules[{missing!r}] = None\nfrom mini_vllm.cli import main\n"
                         f"for command in {commands}:\n    print(main(command))")
    how = "pip install mlx" if sys.platform == "darwin" else "pip install 'mlx[cpu]'"
    assert process.stdout == "2\n" * len(commands)
    told = process.stderr.splitlines()
    assert len(told) == len(commands), "one line each"
    assert all(line.startswith("mini-vllm: MLX cannot be imported (") and line.endswith(f": {how}") for line in told)


def test_any_other_package_that_is_missing_is_named():
    code = ("import sys; sys.modules['tokenizers'] = None\nfrom mini_vllm.cli import main\n"
            "sys.exit(main(['generate', 'x']))")
    process = run_python(code)
    assert (process.returncode, process.stderr) == (2, "mini-vllm: tokenizers is missing: pip install tokenizers\n")


def test_a_mistake_of_our_own_is_not_taken_for_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mini_vllm.cli.doctor", None)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])


def test_the_doctor_gives_its_advice_in_one_unfolded_line(monkeypatch, hardly_measured, capsys):
    monkeypatch.setattr(backend, "blas", BlasInfo("reference", None, backend.NOT_FOUND))
    doctor.run_doctor()
    assert capsys.readouterr().out.splitlines()[-1] == "what to do  " + doctor.advice(backend.blas)


@pytest.mark.parametrize("blas, expected", [
    (BlasInfo("reference", None, backend.NOT_FOUND), ["for faster matrix products", "libopenblas0-pthread"]),
    (BlasInfo("reference", None, backend.SWITCHED_OFF), ["unset MINI_VLLM_BLAS"]),
    (BlasInfo("reference", None, backend.TOO_LATE), ["before mlx.core"]),
    (BlasInfo("nvpl", "/a/b.so", "package nvpl-blas"), ["nothing"]),
    (BlasInfo("metal", None, "none needed"), ["nothing"]),
])
def test_the_advice_is_one_line_that_fits_the_cause(blas, expected):
    line = doctor.advice(blas)
    assert all(part in line for part in expected) and "\n" not in line


@pytest.mark.parametrize("installed, expected", [
    (["mlx", "mlx-cpu"], ""), (["mlx", "mlx-cuda-13"], ""),
    (["mlx", "mlx-cuda-13", "mlx-cpu"], "-y mlx-cpu && pip install --force-reinstall --no-deps mlx-cuda-13"),
])
def test_the_doctor_finds_two_packages_with_the_same_files(monkeypatch, hardly_measured, installed, expected, capsys):
    found = [SimpleNamespace(metadata={"Name": name}) for name in installed]
    monkeypatch.setattr(doctor, "distributions", lambda: found)
    doctor.run_doctor()
    assert capsys.readouterr().out.splitlines()[-1].endswith(expected) and doctor.advice_for_cuda().endswith(expected)


def test_a_blas_that_multiplies_wrongly_is_found(monkeypatch, hardly_measured, capsys):
    monkeypatch.setattr(doctor, "product_error", lambda: 3.5)
    assert doctor.run_doctor() == 1
    assert "off by 3.5" in capsys.readouterr().out


@pytest.mark.parametrize("error, status", [(0.0252, 0), (0.3, 1)])
def test_a_gpu_may_round_the_numbers_that_it_multiplies(monkeypatch, hardly_measured, error, status, capsys):
    """Accept 0.0252, which was measured on an H200 whose answers are right."""
    monkeypatch.setattr(doctor.tuning, "has_gpu", lambda: True)
    monkeypatch.setattr(doctor, "try_kernels", lambda: ("", ""))
    monkeypatch.setattr(doctor, "product_error", lambda: error)
    assert doctor.run_doctor() == status
    assert ("do not use this GPU" in capsys.readouterr().out) == bool(status)


def test_memory_is_told_in_bytes():
    total, available = doctor.memory_bytes()
    assert total > 2**28 and (available is None or 0 < available <= total)


def test_models_that_ship_and_models_that_were_pulled_are_listed(monkeypatch, tmp_path):
    (tmp_path / "assets/tiny").mkdir(parents=True)
    (tmp_path / "assets/tiny/config.json").touch()
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "cli/doctor.py"))
    monkeypatch.setattr(doctor.catalogue, "cached_model", lambda name: tmp_path / name)
    assert doctor.models_at_hand() == [("tiny", tmp_path / "assets/tiny"), ("smollm2", tmp_path / "smollm2")]


@pytest.mark.parametrize("num_rows, seconds, complaint", [(0, 0.1, "num_rows is 0"), (1, 0.0, "seconds is 0.0")])
def test_a_measurement_of_nothing_is_refused(num_rows, seconds, complaint):
    with pytest.raises(ValueError, match=complaint):
        measure_gflops(num_rows, seconds)


FORKED = """
import os, sys
from mini_vllm.llm import LLM
llm = LLM(sys.argv[1], num_blocks=40, block_size=8)
llm.generate([[1, 2, 3]])
child = os.fork()
if child == 0:
    for use in (lambda: llm.generate([[1, 2, 3]]), lambda: llm.beam_search([[1, 2]]), lambda: LLM(sys.argv[1])):
        try:
            use()
        except RuntimeError as error:
            print(f"refused: {error}", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(len(llm.generate([[1, 2, 3]])[0].token_ids))
"""


def test_a_forked_process_is_told_that_mlx_does_not_work_in_it(shallow):
    ran = subprocess.run([sys.executable, "-c", FORKED, shallow("llama3")], capture_output=True, text=True, timeout=100)
    *refused, last = ran.stdout.splitlines()
    assert last == "16" and len(refused) == 3
    assert all(re.fullmatch(r"refused: process \d+ was forked from process \d+, which has used MLX, so .*", line)
               for line in refused)
