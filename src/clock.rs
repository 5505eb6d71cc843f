//! The only room that asks what time it is.
//!
//! Wall-clock time (UTC, whole milliseconds) is for what people and files see; the monotonic clock is for every limit.
//! A debug build adds the seconds in `EXPORT_QUEUE_TEST_CLOCK` and `EXPORT_QUEUE_TEST_MONOTONIC`, so that tests move time
//! instead of waiting for it; a release build does not look at them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeZone, Utc};

/// How far the clock that all machines share is ahead of this one's, in milliseconds.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// Wall-clock time, UTC, cut to milliseconds: that of the shared clock, where there is one.
pub fn now() -> DateTime<Utc> {
    local() + chrono::Duration::milliseconds(OFFSET.load(Ordering::Relaxed))
}

/// From now on the shared clock is that many milliseconds ahead of this machine's.
pub fn set_offset(millis: i64) {
    OFFSET.store(millis, Ordering::Relaxed);
}

/// This machine's own wall-clock time, UTC, cut to milliseconds.
pub fn local() -> DateTime<Utc> {
    #[expect(clippy::disallowed_methods, reason = "this is the room that reads clocks")]
    let now = Utc::now() + chrono::Duration::seconds(offset("EXPORT_QUEUE_TEST_CLOCK"));
    from_millis(now.timestamp_millis())
}

/// The reading of the monotonic clock: comparable between processes of one boot, standing still while suspended.
pub fn monotonic() -> Duration {
    let reading = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = Duration::new(reading.tv_sec.unsigned_abs(), reading.tv_nsec.unsigned_abs().try_into().unwrap_or(0));
    since + Duration::from_secs(offset("EXPORT_QUEUE_TEST_MONOTONIC").unsigned_abs())
}

/// The reading of the clock that also goes on while this machine is suspended; only its differences mean something.
pub fn since_boot() -> Duration {
    let reading = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(reading.tv_sec.unsigned_abs(), reading.tv_nsec.unsigned_abs().try_into().unwrap_or(0))
}

/// The time that many milliseconds after the epoch; a number no calendar reaches becomes the epoch.
pub fn from_millis(millis: i64) -> DateTime<Utc> {
    Utc.timestamp_millis_opt(millis).single().unwrap_or_default()
}

#[cfg(debug_assertions)]
fn offset(variable: &str) -> i64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(not(debug_assertions))]
fn offset(_variable: &str) -> i64 {
    0
}
