"""One process of a side: runs the user's script unchanged, and waits at boundaries for its turn.

:mod:`transformer_core.tune.coordinator` starts it, by ``python -m transformer_core.tune.side ORDER``
or as a fork of a process that has imported torch. A fork enters its overlay itself, and forks the
ranks that torchrun would start.
"""

import gc
import json
import os
import re
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from transformer_core.observe.ranges import (
    TorchRecording,
    eager,
    mark_forward,
    mark_layers,
    torch_range,
)
from transformer_core.run.connection import connect, send
from transformer_core.run.oom import reason_of
from transformer_core.run.warm_start import WARM_STARTS
from transformer_core.tune import disturbance
from transformer_core.tune.boundaries import Boundaries, replacing, transformed
from transformer_core.tune.facts import Memory, Watch, gpus_used
from transformer_core.tune.forked_ranks import fork_ranks
from transformer_core.tune.isolation import enter
from transformer_core.tune.order import OWN_FAULT, UNOBSERVED, Order
from transformer_core.tune.program import is_own, says_out_of_memory
from transformer_core.tune.records import Sketch, fingerprint, signs, sketch
from transformer_core.tune.techniques import TECHNIQUES
from transformer_core.tune.techniques.technique import NOISE, Technique


class Side:
    """The script's process, controlled by the coordinator."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.process = os.getpid()
        """The observed process: that of the script, or a fork of it in which the training begins."""
        # Without a launcher, variables of the user's shell are no numbers of ranks.
        given = os.environ if order.launched else {}
        self.rank, self.ranks = int(given.get("RANK", 0)), int(given.get("WORLD_SIZE", 1))
        self.line = connect(Path(order.coordinator))
        self.boundaries = Boundaries(order.boundary)
        techniques = [TECHNIQUES[name] for name in order.techniques]
        self.techniques: list[Technique] = sorted(techniques, key=lambda each: each.place)
        self.watch = Watch(self.boundaries)
        self.memory = Memory(self.boundaries)
        self.profile: Profile | None = None
        self.left = 0  # remaining steps of the turn
        self.step = 0
        self.recording = False
        self.began = 0.0
        self.sketches: dict[str, Sketch] = {}
        self.losses: list[list[float]] = []
        self.inputs: list[list[float]] = []
        self._sketch = partial(sketch, whole=order.whole)
        self._batch: list[float] = []
        self._disturbed = WeakIdKeyDictionary()  # tensors, and parts of models
        self._rates: set[float] = set()
        self._first: dict[int, tuple[nn.Parameter, Tensor]] = {}
        """Parameters that are held constant, and their first values."""
        self._gradients: dict[str, Sketch] = {}
        """Gradients of the current step, before the optimizer's step changed them."""
        self._looking = True  # whether module calls are still intercepted
        self._trains = False  # whether training has begun here, or before this process was forked
        self._waiting = threading.Lock()  # held by the thread that waits for a turn
        self._asked = False  # whether the script has read from standard input, which is empty
        self._place, taken = os.pipe()
        """A pipe with one byte, for the process that is observed."""
        os.write(taken, b"1")
        os.set_blocking(self._place, False)

    def prepare(self) -> None:
        disturbance.shift_seeds(self.order.seed)
        self.boundaries.on_module = self._found
        self.boundaries.on_inputs = self._note_inputs
        self.boundaries.on_backward = self._note_losses
        self.boundaries.before_first_update = self._before_first_update
        self.boundaries.on_optimizer = self._further_optimizer
        self.boundaries.before_update = self._note_gradients
        self.boundaries.on_boundary = self._boundary
        self.boundaries.compared = self._compared
        self.boundaries.install()
        self.watch.install()
        self.boundaries.on_captured_step = partial(
            self._refuse,
            "a CUDA graph takes its steps, which no hook of torch sees; remedy: let it train without the graph, or "
            "leave the optimizer's step out of it",
        )
        self._refuse_spawn()
        self._refuse_exec()
        self._watch_meetings()
        self._report_exit()
        replacing(sys.stdin, "read")(self._note_question)
        os.register_at_fork(after_in_child=self._forked)
        if not self.order.dropout:
            disturbance.without_dropout(self._rates)
        if 0 < self.order.noise <= NOISE["float32"]:
            disturbance.cross_over(self._compared)
        if NOISE["float32"] < self.order.noise <= NOISE["bfloat16"]:
            # Two roundings of an input. In small models, one that crosses decides how far a gradient moves.
            disturbance.cross_zero(2 * self.order.noise, self._compared)
        if self.order.noise == NOISE["bfloat16"]:
            disturbance.round_states()
            disturbance.round_norms(self._compared)
        for technique in self.techniques:
            technique.facts = self.order.facts
            technique.prepare(self.watch)
        send(self.line, side=self.order.side, rank=self.rank, ranks=self.ranks)

    def _compared(self) -> bool:
        """Whether a certificate compares this step. Otherwise it is timed, and a disturbed copy must be as
        fast as the script."""
        return self.recording or not self.step

    def _refuse(self, why: str) -> NoReturn:
        self.end(f"{UNOBSERVED}{why}")

    def _refuse_spawn(self) -> None:
        """Ranks that a script starts itself cannot be observed: reports this instead of waiting for
        steps that never come."""

        def spawn(*args: Any, **kwargs: Any) -> NoReturn:
            self._refuse(
                "it starts its ranks by torch.multiprocessing; remedy: let it train in one process, or "
                "start its ranks with torchrun"
            )

        torch.multiprocessing.spawn = spawn
        torch.multiprocessing.start_processes = spawn

    def _watch_meetings(self) -> None:
        """Lets a group of one process, which a script makes on a single device, take a free port: that of the
        script would be the same in all copies. Other ranks that the script starts cannot be observed."""
        if not torch.distributed.is_available():
            return
        # In torch.distributed, a function has the name of this module.
        meeting = import_module("torch.distributed.rendezvous")

        @replacing(meeting, "_create_c10d_store")
        def store(original: Any, host: str, port: int, rank: int, ranks: int, *more: Any) -> Any:
            if ranks > 1 and not self.order.launched and os.getpid() == self.process:
                self._refuse(
                    f"it trains on {ranks} ranks that this command has not started, as Lightning does where it finds "
                    "several GPUs; remedy: let it train in one process, or start its ranks with torchrun"
                )
            alone = ranks == 1 and "TORCHELASTIC_USE_AGENT_STORE" not in os.environ
            return original(host, 0 if alone else port, rank, ranks, *more)

    def _refuse_exec(self) -> None:
        """A program that takes the place of the script, such as the script itself with another
        environment, cannot be observed."""

        def execute(original: Any, path: Any, *args: Any) -> None:
            if os.getpid() == self.process:
                self._refuse(
                    f"it is replaced by {os.fsdecode(path)} (os.exec); remedy: set its environment "
                    "variables beforehand, or give the command that it starts"
                )
            original(path, *args)

        replacing(os, "execv")(execute)
        replacing(os, "execve")(execute)

    def _report_exit(self) -> None:
        """Scripts that end by ``os._exit`` report their end, too; processes that they fork do not."""

        def report(status: int) -> NoReturn:
            if os.getpid() == self.process:
                self.end(f"exit status {status}" if status else "")
            _exit(status)

        os._exit = report

    def _forked(self) -> None:
        """In a fork of a process that already trains: what happens here is none of its steps."""
        if self._trains:
            unobserved = Boundaries(self.order.boundary)
            for name, value in vars(unobserved).items():
                if name.startswith(("on_", "before_")):
                    setattr(self.boundaries, name, value)

    def _begin(self) -> None:
        """Lets this process be the observed one if no other trains. Two would answer the coordinator at the
        same time."""
        self.process, self._trains = os.getpid(), True
        try:
            os.read(self._place, 1)
        except BlockingIOError:
            self._refuse(
                "it trains in several processes that it forks; remedy: let it train in one process, or start "
                "its ranks with torchrun"
            )

    def end(self, reason: str, trace: str = "", place: str = "", status: int = 0) -> NoReturn:
        """Reports that the script ended, and ends this process. ``reason`` is empty if it reached its end;
        ``place`` is the line of the user's code that failed. A forked process only ends, with ``status``."""
        if os.getpid() != self.process:
            leave(status)
        with suppress(OSError):
            told = {"at": time.monotonic(), "trace": trace, "place": place, "step": self.step}
            told |= {"backwards": self.boundaries.backwards, "asked": self._asked}
            send(self.line, ended=reason, **told, **self.last_words())
        leave()

    def _note_question(self, read: Any, *args: Any) -> Any:
        self._asked = True
        return read(*args)

    def last_words(self) -> dict[str, Any]:
        """Further facts to report at the end of the script."""
        return {}

    def _found(self, module: nn.Module) -> None:
        self.watch.found(module)
        if self.order.profiled and len(self.boundaries.modules) == 1:
            self.watch.look_for_waits()
        # A transformation has its own copies of the weights; the first update disturbs the real ones.
        if self.order.noise and not transformed():
            self._disturb(module.parameters())
            if self.order.noise > NOISE["float32"]:
                self._disturb_results(module)
        for technique in self.techniques:
            technique.module(module)

    def _note_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.step and self.boundaries.updated_by_hand():
            self.end("no step")
        if self._compared():
            self.watch.called()
            self._batch += fingerprint([args, kwargs])

    def _note_losses(self, losses: Any) -> None:
        if not self.step and not self.boundaries.modules and self.boundaries.updated_by_hand():
            self._refuse(
                "it updates tensors itself that belong to no module; remedy: let an optimizer update "
                "them, such as torch.optim.SGD"
            )
        if self._compared():
            self.watch.look_at(losses)

    def _before_first_update(self) -> None:
        self._begin()
        self._further_optimizer()
        with self._between_turns():
            self._wait()

    def _further_optimizer(self) -> None:
        """Records the weights that an optimizer is about to change for the first time."""
        if self.order.noise:
            # Also parameters of modules that were never called.
            self._disturb([parameter for _, parameter in self.boundaries.parameters()])
        if self.order.held:
            for _, each in (*self.boundaries.parameters(), *self.boundaries.orphans()):
                self._first.setdefault(id(each), (each, each.detach().clone()))
        if self._compared():
            for name, parameter in self.boundaries.parameters():
                if f"{self.step} weight {name}" not in self.sketches:
                    self.sketches[f"{self.step} weight {name}"] = self._sketch(parameter)

    def _disturb(self, parameters: Iterable[nn.Parameter]) -> None:
        """Changes each weight by a random fraction of its size."""
        generator = torch.Generator().manual_seed(self.order.seed + 1 + 2 * self.order.draw)
        with torch.no_grad():
            for parameter in parameters:
                if parameter not in self._disturbed and parameter.is_floating_point():
                    self._disturbed[parameter] = True
                    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                    # The script's default device may be another than the generator's.
                    change = torch.empty(local.shape, device="cpu")
                    change.uniform_(-1, 1, generator=generator)
                    local.mul_(1 + self.order.noise * change.to(local.device))

    def _disturb_results(self, module: nn.Module) -> None:
        """Slightly change every result of every inner module, and so its gradient.

        A format with few bits rounds each result separately. If two passes nearly cancel, such as
        those of a critic for true and false samples, disturbing only the weights would cancel too.
        """
        generators: dict[torch.device, torch.Generator] = {}

        def disturbed(part: nn.Module, inputs: Any, result: Any) -> Any:
            wide = isinstance(result, Tensor) and result.is_floating_point()
            if not wide or not torch.is_grad_enabled() or transformed():
                return None
            if self.order.noise == NOISE["bfloat16"]:
                # As the format rounds: equal numbers stay equal, which decides maxima, and close
                # numbers move in the same direction, so that nothing averages out.
                return result.to(torch.bfloat16).to(result.dtype)
            if result.device not in generators:
                generators[result.device] = torch.Generator(result.device)
                generators[result.device].manual_seed(self.order.seed + 2 + 2 * self.order.draw)
            change = torch.empty(result.shape, device=result.device)
            change.uniform_(-1, 1, generator=generators[result.device])
            return result * (1 + self.order.noise * change).to(result.dtype)

        # The compiler would trace what disturbs the results of a module inside.
        for _, part in eager(module, "", set()):
            if part not in self._disturbed and not [*part.children()]:
                self._disturbed[part] = True
                with suppress(RuntimeError):
                    part.register_forward_hook(disturbance.Hook(disturbed))

    def _boundary(self) -> None:
        self.step += 1
        if self.step == 1:
            self.watch.count_garbage()
        for technique in self.techniques:
            technique.boundary()
        if self.recording:
            self._record()
        with torch.no_grad():
            for parameter, first in self._first.values():
                parameter.copy_(first)
        if self._looking and self.step >= 2 and not self.recording:
            self._looking = False
            self.boundaries.stop_watching_modules()
        self.left -= 1
        if self.profile is not None:
            self.profile.boundary(last=self.left <= 0)
        if self.left <= 0:
            with self._between_turns():
                synchronise()
                seconds = time.perf_counter() - self.began
                # Workers of data loaders stop while other sides are timed.
                signal_children(signal.SIGSTOP)
                rest()
                trace = self.profile.save() if self.profile else None
                self.profile = None
                send(self.line, seconds=seconds, trace=trace)
                self._wait()

    @contextmanager
    def _between_turns(self) -> Iterator[None]:
        """While one thread of the script waits, no other may take steps: both would answer the coordinator."""
        if not self._waiting.acquire(blocking=False):
            self._refuse(
                "several of its threads train at the same time; remedy: let it train in one thread"
            )
        try:
            yield
        finally:
            self._waiting.release()

    def _note_gradients(self, optimizer: Optimizer) -> None:
        """Records the gradients that an optimizer is about to use."""
        if not self.recording:
            return
        # With a fused kernel, gradients still have the scale of a GradScaler.
        scale = getattr(optimizer, "grad_scale", None)
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in self.boundaries.parameters():
            # Another optimizer may have changed its own gradients since they were recorded.
            if parameter.grad is not None and (id(parameter) in own or name not in self._gradients):
                times = float(scale) if scale is not None and id(parameter) in own else 1.0
                self._gradients[name] = self._sketch(parameter.grad) / times

    def _record(self) -> None:
        """Records everything about this step that the certificate compares."""
        for name, parameter in self.boundaries.parameters():
            if name in self._gradients:
                self.sketches[f"{self.step} gradient {name}"] = self._gradients[name]
            elif parameter.grad is not None:
                self.sketches[f"{self.step} gradient {name}"] = self._sketch(parameter.grad)
            self.sketches[f"{self.step} weight {name}"] = self._sketch(parameter)
        for name, parameter in self.boundaries.orphans():
            if parameter.grad is not None:
                self.sketches[f"{self.step} orphan {name}"] = np.zeros(0)
        for name, buffer in self.boundaries.buffers():
            self.sketches[f"{self.step} buffer {name}"] = self._sketch(buffer)
        self.losses.append([float(loss) for loss in self.boundaries.losses])
        self.inputs.append(self._batch)
        self._batch, self._gradients = [], {}

    def _wait(self) -> None:
        """Answer the coordinator until it gives this side a turn."""
        while True:
            try:
                message = json.loads(self.line.recv_bytes())
            except (EOFError, ConnectionError):
                leave()
            except Exception as error:  # If the script caught it, it would train out of turn.
                self._refuse(
                    f"its own alarm raises {type(error).__name__}: {error} while it waits for its turn; remedy: let "
                    "it train without the alarm"
                )
            match message["kind"]:
                case "TellFacts":
                    send(self.line, facts=self._facts())
                case "WriteRecord":
                    send(self.line, written=self._write())
                case "Train":
                    break
                case _:
                    leave()
        turn = message["task"]
        if self.recording and not turn["record"]:
            signs.cache_clear()
            self.memory.reset()  # The peak so far includes the records.
        if turn["record"] and self.step:
            self.boundaries.begin_again()
        self.left, self.recording = turn["steps"], turn["record"]
        signal_children(signal.SIGCONT)
        if turn["profile"]:
            self.watch.stop_looking_for_waits()
            self.profile = Profile(self.boundaries.modules, Path(self.order.record), self.rank)
        synchronise()
        self.began = time.perf_counter()

    def _facts(self) -> dict[str, Any]:
        gone = [why for t in self.techniques if (why := t.without_effect())]
        seen = {"without_effect": gone, "memory": self.memory.parts(), "world": self.ranks}
        found = self.watch.facts()
        found["calls"] = [call | {"file": self._original(call["file"])} for call in found["calls"]]
        found["places"] = {
            what: (self._original(file), line) for what, (file, line) in found["places"].items()
        }
        return found | seen

    def _original(self, file: str) -> str:
        """The user's own file, if ``file`` is one of a copy that the script runs in."""
        copy = Path(self.order.directory).resolve()
        inside = self.order.original and Path(file).is_relative_to(copy)
        return str(Path(self.order.original, Path(file).relative_to(copy))) if inside else file

    def _write(self) -> str:
        folder = Path(self.order.record)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"rank-{self.rank}.npz"
        tables = {"losses": _table(self.losses), "inputs": _table(self.inputs)}
        tables["rates"] = np.array(sorted(self._rates))
        tables["normalized"] = np.array(sorted(self.watch.normalized), dtype=float)
        temporary = file.with_suffix(".tmp.npz")
        np.savez(temporary, **tables, **self.sketches)  # type: ignore[arg-type]
        temporary.replace(file)
        return str(file)


class Profile:
    """torch.profiler over the next steps of ``modules``. The trace of a rank goes into ``folder``."""

    def __init__(self, modules: list[nn.Module], folder: Path, rank: int) -> None:
        for module in modules:
            # Users' names for layers, next to torch's own ranges for data, backward and optimizer.
            mark_forward(module, torch_range)
            mark_layers(module, torch_range)
        device = next((p.device for m in modules for p in m.parameters()), torch.device("cpu"))
        folder.mkdir(parents=True, exist_ok=True)
        self._running = TorchRecording(folder, rank, device)
        self._running.prepare()
        self._running.start()
        self._begin_step()

    def boundary(self, last: bool) -> None:
        """Ends a step, and begins the next unless it was the ``last``."""
        self._step.__exit__(None, None, None)
        if not last:
            self._begin_step()

    def save(self) -> str:
        self._running.stop()
        (name,) = self._running.save()
        return str(self._running.output / name)

    def _begin_step(self) -> None:
        self._step: AbstractContextManager[Any] = torch_range("step")
        self._step.__enter__()


def _table(rows: list[list[float]]) -> np.ndarray[Any, Any]:
    """Rows of different lengths as one array, padded with NaN."""
    table = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def synchronise() -> None:
    """Wait for the GPUs that the script uses, if any."""
    for index in gpus_used():
        torch.cuda.synchronize(index)


_exit = os._exit
REST_SECONDS = 0.05  # longest wait for idle threads after a turn, in seconds


def rest() -> None:
    """Waits until the threads of this process are idle. OpenMP's threads spin for some milliseconds
    after their work, on cores that the next side needs."""
    end = time.perf_counter() + REST_SECONDS
    while time.perf_counter() < end:
        busy = time.process_time()
        time.sleep(0.001)
        if time.process_time() - busy < 0.0003:
            break


def signal_children(*numbers: signal.Signals) -> None:
    """Sends signals to all processes that this one has started, and that these have started."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            for number in numbers:
                child.send_signal(number)


def leave(status: int = 0) -> NoReturn:
    """Ends this process and its children immediately, in the middle of the script."""
    signal_children(signal.SIGCONT, signal.SIGKILL)
    sys.stdout.flush()
    sys.stderr.flush()
    _exit(status)


def as_the_user_has_it() -> None:
    """Removes this project from the module paths, and forgets its modules whose names the script may
    use itself."""
    # The first path is the folder where ``python -m`` started; the coordinator adds the last one.
    here = str(Path(__file__).resolve().parents[2])
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path.pop(0)
    if given and given[-1] == here:
        del given[-1]
        if here in sys.path and here not in given:
            sys.path.remove(here)
        os.environ["PYTHONPATH"] = os.pathsep.join(given)
    os.environ.pop(WARM_STARTS, None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "schemas"]:
        del sys.modules[name]


def forget_shadowed(folder: Path) -> None:
    """Forgets Python's own modules whose names files in the script's folder have: the script imports those, also
    where this project has imported Python's."""
    own = {path.stem for path in folder.glob("*.py")}
    own |= {path.parent.name for path in folder.glob("*/__init__.py")}
    own &= sys.stdlib_module_names - {*sys.builtin_module_names} - STARTED
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]


class _Main(ModuleType):
    """The script, under the name that its classes have in the processes that it spawns. Python takes the module
    that runs when multiprocessing is imported, which is this project's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["__main__"], name)


STARTED = {*"abc codecs encodings genericpath io os posixpath site stat".split()}  # noqa: SIM905
"""Modules that Python imports before it knows the script."""
TORCH = Path(torch.__file__).parent
HANDED_OVER = re.compile(r"\b(original|real|closure)\(")
"""In lines that carry out a call of the script, whose error it is."""


def place_of(error: BaseException, folder: str) -> str:
    """File, relative to ``folder``, and line of the innermost frame of the user's code in the traceback
    of ``error``; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    places: list[tuple[str, Any]] = [(f.filename, f.lineno) for f in frames if is_own(f.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    return f"{places[-1][0].removeprefix(f'{folder}/')}, line {places[-1][1]}" if places else ""


def raised_here(error: BaseException) -> bool:
    """Whether ``error`` is a mistake in code of this project, which raises others on purpose. What
    observes a script may also call torch with wrong arguments, unless it hands over a call of the
    script; a technique may call functions that the machine lacks."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    while len(frames) > 1 and Path(frames[-1].filename).is_relative_to(TORCH):
        frames.pop()
    file, line = Path(frames[-1].filename), frames[-1].line or ""
    if HANDED_OVER.search(line):
        return False
    if frames[-1] is last:
        return file.is_relative_to(Path(__file__).parents[1]) and not line.startswith("raise")
    observes = file.parent in (Path(__file__).parent, Path(__file__).parents[1] / "audit")
    return observes and file.name != "factory.py" and "*args" not in line


def run(order: Order, kind: type[Side] = Side) -> NoReturn:
    """Run the script of ``order`` to its end, or until the coordinator ends it."""
    os.chdir(order.directory)
    side = kind(order)
    side.prepare()
    as_the_user_has_it()
    sys.modules["__mp_main__"] = _Main("__mp_main__")
    script, *arguments = order.command
    # Objects made so far are old. In a fork, a collection would copy the memory that it shares.
    if gc.get_freeze_count():
        gc.unfreeze()
    else:
        gc.collect()
    try:
        module = script == "-m"
        sys.argv = arguments if module else [script, *arguments]
        sys.path.insert(0, order.directory if module else str(Path(script).resolve().parent))
        forget_shadowed(Path(sys.path[0]))
        if module:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            # Python makes __file__ absolute; processes that the script spawns import that file.
            runpy.run_path(str(Path(order.directory, script)), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            status = error.code if isinstance(error.code, int) else 1
            if status is not error.code:
                print(error.code, file=sys.stderr)  # as Python does
            side.end(f"exit status {status}", status=status)
    except BaseException as error:
        trace = traceback.format_exc()
        print(trace, file=sys.stderr)
        who = f"rank {side.rank}: " if side.ranks > 1 else ""
        why = f"{who}{type(error).__name__}: {error}"
        if not says_out_of_memory(why):  # Libraries of CUDA may use other words.
            of_tool = OWN_FAULT if raised_here(error) else ""
            why = f"{'out of memory: ' if reason_of(error) else of_tool}{why}"
        side.end(why, trace, place_of(error, order.directory), status=1)
    side.end("")


def main(kind: type[Side] = Side) -> NoReturn:
    order, *fork = sys.argv[1:]
    if fork:
        ranks, *overlay = fork
        if overlay:
            enter(*overlay)
        if int(ranks):
            fork_ranks(int(ranks))
    run(Order.read(Path(order)), kind)


if __name__ == "__main__":
    main()
