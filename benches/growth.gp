# One plot of docs/growth/NAME.csv, as docs/growth/NAME.svg.
set terminal svg size 640,360 font "sans-serif,12" background "white"
set output sprintf("docs/growth/%s.svg", name)
set datafile separator ","
set key autotitle columnhead top left
set logscale x
set grid
set format x "%.0s%c"
table = sprintf("docs/growth/%s.csv", name)
if (name eq "slots" || name eq "callers" || name eq "nodes") { set logscale x 2; set format x "%.0f" }
if (name eq "callers" || name eq "rows" || name eq "files") { set logscale y; set ylabel "ms (log)" }
if (name eq "slots") { set ylabel "wall ÷ ideal"; set yrange [0.9:] }
if (name eq "nodes") { set ylabel "a second"; set yrange [0:] }
if (name eq "files") { set ylabel "ms; sweep: µs a file (log)" }
set xrange [*:*]
set autoscale xfix
set xlabel name
stats table skip 1 nooutput
plot for [column = 2:STATS_columns] table using 1:column with linespoints linewidth 2 pointtype 7 pointsize 0.6
