"""paceline: which settings train my model fastest, and is it still the same training?"""

__version__ = "0.1.0"
