"""`./strata experiment NAME`: a figure of a published paper measured again with this system, scaled to one machine.

ladder.py       variants of the storage ladder x buffer sizes x loads: how it is measured, and what is kept of it
openaurora.py   the figures of "Understanding the performance implications of the design principles in storage-disaggregated
                databases" (OpenAurora): which variants, and what the paper found
report.py       JSON, a plot, and the sentence that compares shape and ratios with the paper's; all computed from the measurement

comparisons.py  of the two papers below: setups, their runs, and how these are set beside what a paper found
result_page.py  JSON, pages, plots and sentences of such runs
courses.py      of their courses, and of ladder.py: time that is dilated, runs that are void, loads that go on

legobase.py         the figures of "Towards Cost-Effective and Elastic Cloud Database Deployment via Memory Disaggregation"
                    (LegoBase): what is set up, how it is loaded, and what the paper found
loads.py            their loads: sysbench, TPC-C, TPC-H
deployments.py      the databases that are loaded, with parts of their memory local, struck and moved
legobase_report.py  JSON, plots and sentences of them

polardbmp.py          the figures of "PolarDB-MP: A Multi-Primary Cloud-Native Database via Disaggregated Shared Memory"
polardbmp_cluster.py  servers that write the same tables, their loads, and what they count
polardbmp_course.py   how it is measured: servers of their own numbers, indexes, a kill, servers that are added
polardbmp_report.py   JSON, plots and sentences of them

ddc.py              the figures of "Understanding the Effect of Data Center Resource Disaggregation on Production DBMSs" that are
                    of PostgreSQL: an unmodified one, on far memory
ddc_report.py       JSON, plots and sentences of them

command.py          which options each of them takes
"""
