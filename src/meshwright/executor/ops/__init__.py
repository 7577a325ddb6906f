"""Operations of the executor, one file each, named by what it does."""
