"""One rank's process: `python -m meshwright.worker`. What a job names is found here; running it is the executor's."""

from meshwright.catalog.handlers import load_handlers
from meshwright.executor.job.worker import main

if __name__ == "__main__":
    main(load_handlers)
