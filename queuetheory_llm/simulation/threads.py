"""Independent runs side by side in threads: the compiled kernels give up the interpreter while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import whole_fault

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def in_threads(
    each: Callable[[Task], Answer],
    tasks: Iterable[Task],
    workers: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Answer]:
    """The answers in the order of the tasks, whatever the number of threads.

    Parameters
    ----------
    each : callable
    tasks : iterable
    workers : int, optional
        Threads; by default one a core.
    progress : callable, optional
        Told the share of the tasks that is done.

    Raises
    ------
    InvalidInput
        If ``workers`` is no number of threads.
    """
    from joblib import Parallel, cpu_count, delayed

    if workers is not None and (fault := whole_fault("workers", workers, 1, "the number of threads")):
        raise InvalidInput(fault)
    listed = list(tasks)
    threads = min(workers or cpu_count(), max(len(listed), 1))
    answers = []
    for answer in Parallel(n_jobs=threads, prefer="threads", return_as="generator")(
        delayed(each)(one) for one in listed
    ):
        answers.append(answer)
        if progress is not None:
            progress(len(answers) / len(listed))
    return answers
