"""The machine, drawn: deterministic SVG for notebooks, pages, the commands and the README.

    draw_pool     the block pool as a strip: a colour a request, shared blocks hatched, cached free blocks pale
    draw_cache    the same, and the block tables under it
    draw_queue    the free queue as a chain
    draw_tree     what is cached, as the tree it is
    draw_memory   slots in a row and the runs they were given out in: used, reserved, wasted, free
    draw_slots    the positions of a text, and the slots of the pool where they lie
    draw_batch    the ragged batch of one step, and the rectangle that it is not
    draw_trace    a recorded run: requests over steps, and times and blocks on the same axis
    draw_step     one step of a recorded run: the pool, the tables, and what is to be copied
    step_through  a recorded run, a frame a step
    Slides        frames of one's own behind a slider, and as stills where no script runs
    stack         pictures under each other, as one
    use_chart_style  matplotlib's charts in the same colours

    palette, elements, canvas    colours by name, shapes as text, what one draws on
    picture, slides, cast        what notebooks and files get; who has which letter and colour
    pool_state, strip, tables    how a pool stands, as data; its blocks side by side; who holds which
    timeline                     ``draw_trace``: a legend and four panels on a sheet, made of the same marks

A picture shows the objects that it is given, whoever wrote them: only names of the labs' contracts are asked for.
"""

from mini_vllm.pictures.batch import draw_batch
from mini_vllm.pictures.chart_style import use_chart_style
from mini_vllm.pictures.free_queue import draw_queue
from mini_vllm.pictures.memory import MemoryRun, draw_memory, runs_in_pages
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool import draw_cache, draw_pool
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.slides import Slides
from mini_vllm.pictures.slots import draw_slots
from mini_vllm.pictures.stack_pictures import stack
from mini_vllm.pictures.steps import draw_step, step_through
from mini_vllm.pictures.timeline import draw_trace
from mini_vllm.pictures.tree import draw_tree

__all__ = ["Cast", "MemoryRun", "Picture", "Slides", "draw_batch", "draw_cache", "draw_memory", "draw_pool",
           "draw_queue", "draw_slots", "draw_step", "draw_trace", "draw_tree", "runs_in_pages", "stack",
           "step_through", "use_chart_style"]
