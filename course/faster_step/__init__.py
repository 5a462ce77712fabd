"""Lab 5.4: what a step of the student's model runner costs, compared with the reference's."""
