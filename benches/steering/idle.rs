//! What a dispatcher costs that has nothing to do.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::harness::Queue;

pub(crate) fn measure() {
    let queue = Queue::new();
    queue.dispatch().code(0).silent();
    let before = cpu_of_children();
    queue.run(["dispatch", "--for", "60s"]).code(0).silent();
    let spent = cpu_of_children() - before;
    println!("| an idle `dispatch --for 60s` | milliseconds |\n|---|---|\n| user and system time | {spent:.1} |");
}

/// User and system time of all children that were waited for, in milliseconds.
fn cpu_of_children() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the kernel counts");
    (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1000.0
}
