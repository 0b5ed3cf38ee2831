# Tests for the runtime PyTorch 1.12.
echo "specific/run_testing_pt112.sh of $RUNTIME in ${NOTEBOOK-no Notebook}"
