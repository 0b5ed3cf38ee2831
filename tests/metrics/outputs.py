"""What programs really print: short pieces, from runs on the machine where this was written."""

from __future__ import annotations

MPI4PY_LATENCY = """\
# MPI Latency Test
# Size [B]        Latency [us]
         0               14.93
         1               14.47
        16               10.96
"""

MPI4PY_BANDWIDTH = """\
# MPI Bandwidth Test
# Size [B]        Latency [us]
         1                0.04
        16                2.96
"""

MPI4PY_BARRIER = """\
# MPI Barrier Latency Test
# Size [B]        Latency [us]
         0               40.69
"""

PINGPONG = """\
# MPI PingPong Test
# Size [B]  Bandwidth [MB/s] | Time Mean [s] ± StdDev [s]  Samples
         1              0.16 | 6.3853333e-06 ± 2.8810e-06        3
        64             25.50 | 2.5096666e-06 ± 3.2105e-07        3
"""

PINGPONG_BARE = """\
         1              0.48
         2              0.01
"""

FUTURES = """\
# MPIPoolExecutor - 1 workers, 50 tasks/worker
# Size [B]  Tasks/s | Time Mean [s] ± StdDev [s]  Samples
         1      863 | 5.7963236e-02 ± 7.0008e-03       10
"""

RINGTEST = "time for 2 loops = 0.0113758 seconds (2 processes, 1 bytes)\n"

IMB = """\
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.11, MPI-1 part
#----------------------------------------------------------------
# Date                  : Mon Nov 16 07:44:50 2026
# Minimum message length in bytes:   0

# List of Benchmarks to run:

# PingPong
# Barrier

#---------------------------------------------------
# Benchmarking PingPong
# #processes = 2
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0           20         2.51         0.00
           16           20         2.09         7.67

#-----------------------------------------------------------------------------
# Benchmarking Sendrecv
# #processes = 2
#-----------------------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
            4           20        11.08        11.37        11.23         0.70

#---------------------------------------------------
# Benchmarking Barrier
# #processes = 2
#---------------------------------------------------
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
           20         0.52         0.53         0.54


# All processes entering MPI_Finalize
"""

REFRAME = """\
{"session_info": {"data_version": "4.2", "version": "4.10.4"},
 "runs": [{"num_cases": 1, "testcases": [
   {"name": "Stream", "display_name": "Stream", "environ": "builtin", "system": "generic",
    "partition": "default", "result": "pass", "time_total": 0.314,
    "perfvalues": {"generic:default:triad": [1234.5, 0, null, null, "MB/s", "pass"],
                   "generic:default:lat": [2.5, 2.5, null, 0.1, "us", "pass"]}}]}],
 "restored_cases": []}
"""

PYTEST_BENCHMARK = """\
{"machine_info": {}, "version": "5.3.1", "benchmarks": [
  {"group": null, "name": "test_sum[10]", "fullname": "test_b.py::test_sum[10]",
   "params": {"n": 10}, "param": "10",
   "stats": {"min": 1.6e-07, "mean": 8.8e-07, "median": 1.65e-07, "rounds": 3,
             "data": [3.6e-07, 1.65e-07, 1.6e-07]}},
  {"group": null, "name": "test_plain", "fullname": "test_b.py::test_plain", "params": null,
   "stats": {"min": 2.2e-07, "mean": 9.6e-07, "median": 4.06e-07, "rounds": 1954}}]}
"""

# The three below are written after the formats that the programs document: they are not here to run.

OSU_ALLREDUCE = """\
# OSU MPI Allreduce Latency Test v7.2
# Datatype: MPI_INT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       1.96              1.90              2.02        1000
"""

OSU_MESSAGE_RATE = """\
# OSU MPI Multiple Bandwidth / Message Rate Test v5.9
# [ pairs: 1 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
1                       5.12        5119842.31
"""

HPCC = """\
########################################################################
Begin of Summary section.
VersionMajor=1
MPI_Wtick=1e-09
HPL_Tflops=0.0123
StarSTREAM_Triad=3.25
StarDGEMM_Gflops=9.5
MaxPingPongLatency_usec=0.48
RandomlyOrderedRingBandwidth_GBytes=1.75
MPIRandomAccess_GUPs=0.004
MPIFFT_Gflops=-1
Success=1
End of Summary section.
Elsewhere_Tflops=1
"""
