"""Pictures of the engine: deterministic SVG for notebooks, pages, the commands and the README.

    draw_pool     the block pool as a strip: one colour per request, shared blocks hatched, cached free blocks pale
    draw_cache    the block pool with the block tables below it
    draw_queue    the free queue as a chain
    draw_tree     the cached blocks as a prefix tree
    draw_memory   slots in a row, and the runs allocated to requests: used, reserved, wasted, free
    draw_slots    the positions of a text, and the slots of the pool that hold them
    draw_batch    the ragged batch of one step, compared with a padded rectangle
    draw_automaton  the automaton of a regular expression, the current state, and the tokens that may come next
    draw_replicas  the blocks of some prompts: which replicas have them, and where the router is wrong about it
    draw_trace    a recorded run: requests over steps, with times and blocks on the same axis
    draw_step     one step of a recorded run: the pool, the tables and the planned copies
    step_through  a recorded run, one frame per step
    Slides        your own frames behind a slider, or as stills where scripts do not run
    stack         several pictures below each other, as one picture
    use_chart_style  matplotlib's charts in the same colours

    palette, elements, canvas          colours by name, shapes as text, the canvas
    picture, slides, request_colours   the results for notebooks and files; the letter and colour of each request
    pool_state, strip, tables          the state of a pool as data; its blocks side by side; its block tables
    character_graph, automaton_layout  ``draw_automaton``: states and characters as data, and where each is drawn
    timeline                           ``draw_trace``: a legend and four panels on a sheet, made of the same marks

The functions draw a student's objects and the reference's alike: they use only names that the labs prescribe.
"""

from mini_vllm.pictures.automaton import draw_automaton
from mini_vllm.pictures.batch import draw_batch
from mini_vllm.pictures.chart_style import use_chart_style
from mini_vllm.pictures.free_queue import draw_queue
from mini_vllm.pictures.memory import MemoryRun, draw_memory, runs_in_pages
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool import draw_cache, draw_pool
from mini_vllm.pictures.replicas import draw_replicas
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.slides import Slides
from mini_vllm.pictures.slots import draw_slots
from mini_vllm.pictures.stack_pictures import stack
from mini_vllm.pictures.steps import draw_step, step_through
from mini_vllm.pictures.timeline import draw_trace
from mini_vllm.pictures.tree import draw_tree

__all__ = ["Cast", "MemoryRun", "Picture", "Slides", "draw_automaton", "draw_batch", "draw_cache", "draw_memory",
           "draw_pool", "draw_queue", "draw_replicas", "draw_slots", "draw_step", "draw_trace", "draw_tree",
           "runs_in_pages", "stack", "step_through", "use_chart_style"]
