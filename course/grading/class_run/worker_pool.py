"""Several processes that grade, each one file at a time. A process that dies or hangs is replaced."""

from __future__ import annotations

import selectors
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from course.core.result import LabResult, Outcome
from course.grading.class_run.worker_process import Job, Worker, WorkerLost
from course.lab.lab import PROJECT_ROOT, LabError

#: A worker that is silent for longer than this, times the lab's own factor, is considered lost. The grader's own limits
#: end a file long before.
BACKSTOP_S = 3000.0
STARTUP_LIMIT_S = 120.0
#: The worker finds this package, and nothing in the current folder, which may be a student's.
COMMAND = (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PROJECT_ROOT)!r}); "
           "from course.grading.class_run.worker import main; main()")


class Pool:
    """Workers, and the jobs that wait for them."""

    def __init__(self, num_workers: int, folder: Path, request: dict[str, Any], command: Sequence[str] = COMMAND,
                 backstop_s: float = BACKSTOP_S) -> None:
        self._num_workers = num_workers
        self._folder = folder
        self._request = request
        self._command = command
        self._backstop_s = backstop_s
        self._workers: list[Worker] = []
        self._waiting: deque[Job] = deque()
        self._num_started = 0

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, LabResult]]:
        """Yield each job with its result, as they arrive. A job without a score is done once more, after all others.

        However this ends, the workers are ended. Raise LabError if a worker does not even start.
        """
        self._waiting = deque(jobs)
        try:
            while self._waiting or any(worker.job for worker in self._workers):
                self._give_to_idle()
                while len(self._workers) < min(self._num_workers, len(self._waiting) + self._num_busy()):
                    self._start()
                for worker, answer in self._answers():
                    yield from self._take(worker, answer)
        finally:
            for worker in self._workers:
                worker.end()
            self._workers.clear()

    def _num_busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    def _give_to_idle(self) -> None:
        """Give waiting jobs to workers without one. A job waits again when its worker dies, maybe after all others."""
        for worker in self._workers:
            if self._waiting and worker.is_ready and worker.job is None:
                worker.give(self._waiting.popleft(), self._request)

    def _start(self) -> None:
        self._num_started += 1
        self._workers.append(Worker(self._command, self._folder / f"worker-{self._num_started}"))

    def _answers(self) -> list[tuple[Worker, dict[str, Any] | WorkerLost]]:
        """Return the workers' answers within a moment, and the workers that no longer answer."""
        found: list[tuple[Worker, dict[str, Any] | WorkerLost]] = []
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            for key, _ in selector.select(timeout=0.2):
                try:
                    if (answer := key.data.read()) is not None:
                        found.append((key.data, answer))
                except WorkerLost as lost:
                    found.append((key.data, lost))
        heard = [worker for worker, _ in found]
        for worker in self._workers:
            factor = worker.job.time_factor if worker.job else 1.0
            limit_s = self._backstop_s * factor if worker.is_ready else STARTUP_LIMIT_S
            if worker not in heard and (worker.job or not worker.is_ready) and worker.waited_s() > limit_s:
                found.append((worker, WorkerLost(f"it did not finish within {limit_s:g} s by the clock")))
        return found

    def _take(self, worker: Worker, answer: dict[str, Any] | WorkerLost) -> Iterator[tuple[Job, LabResult]]:
        """Record a worker's answer, and give it the next job."""
        job = worker.job
        if isinstance(answer, WorkerLost):
            said = worker.said()
            worker.end()
            self._workers.remove(worker)
            if not worker.is_ready or job is None:
                raise LabError(f"The grader did not start: {answer}. Its output:\n{said}")
            yield from self._settle(job, LabResult(
                job.lab, Outcome.GRADE_AGAIN, reason=f"The grader crashed on this file: {answer}.", flags=(said,)))
            return
        if worker.is_ready and job is not None:
            yield from self._settle(job, LabResult.from_json(answer))
        worker.is_ready, worker.job = True, None

    def _settle(self, job: Job, result: LabResult) -> Iterator[tuple[Job, LabResult]]:
        if result.outcome is Outcome.GRADE_AGAIN and not job.is_second:
            self._waiting.append(replace(job, is_second=True))
        else:
            yield job, result
