"""Images of our own: an EDM that is trained on a pool and makes another one of origin ``generated``."""

from puma.generation.edm import SolverConfig
from puma.generation.generator_folder import GeneratorConfig, GeneratorFolder, find_generator_recipe, load_generator
from puma.generation.generator_training import estimate_generator_cost, read_images, resume_generator, train_generator
from puma.generation.image_sampling import SampleConfig, sample_pool
from puma.generation.quality import AssessmentConfig, ImageAssessment, answer_pool, assess_images, measure_frechet
from puma.generation.selection import SelectionConfig, filter_pool

__all__ = [
    "AssessmentConfig",
    "GeneratorConfig",
    "GeneratorFolder",
    "ImageAssessment",
    "SampleConfig",
    "SelectionConfig",
    "SolverConfig",
    "answer_pool",
    "assess_images",
    "estimate_generator_cost",
    "filter_pool",
    "find_generator_recipe",
    "load_generator",
    "measure_frechet",
    "read_images",
    "resume_generator",
    "sample_pool",
    "train_generator",
]
