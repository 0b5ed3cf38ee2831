# Tests for all Notebooks.
echo "run_testing.sh of $RUNTIME in ${NOTEBOOK-no Notebook}"
