//! How honest forecasts are: the share of jobs that start within the range they were told when they were asked for.

use crate::day;
use crate::percentile;

pub(crate) fn measure() {
    let mut day = day::play(24, 7);
    day.widths.sort_by(f64::total_cmp);
    let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole as f64;
    println!("| a simulated day | |\n|---|---|");
    println!(
        "| jobs; of these had to wait; the longest wait | {}; {}; {:.0} min |",
        day.asked,
        day.waited,
        day.longest / 60.0
    );
    println!("| of the waiting were told a range | {:.1} % |", percent(day.told, day.waited));
    println!(
        "| of these started within it; before; after | {:.1} %; {:.1} %; {:.1} % |",
        percent(day.within, day.told),
        percent(day.early, day.told),
        percent(day.told - day.within - day.early, day.told)
    );
    println!(
        "| half of the ranges are not wider than so much of their middle | {:.0} % |",
        100.0 * percentile(&day.widths, 50)
    );
}
