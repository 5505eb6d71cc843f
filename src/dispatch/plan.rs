//! What a tick would do.

use anyhow::Result;

use super::obstacles;
use crate::bind::Home;
use crate::clock;
use crate::exporter;
use crate::gates;

/// What a dry run says.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// One line a step that a tick would take.
    pub lines: Vec<String>,
}

/// What a tick would do now.
///
/// # Errors
/// The queue cannot be read.
pub fn plan(home: &Home) -> Result<Plan> {
    home.refuse_others()?;
    let mut plan = Plan::default();
    let Some(store) = home.open_to_read()? else {
        plan.lines.push("set up a new queue".to_owned());
        return Ok(plan);
    };
    let now = clock::now();
    for (queue, settings) in &home.config.queue {
        let due = store.due(queue, &exporter::available(&home.config), now, 1000)?;
        let taken = store.count_started(queue)?;
        let state = match (store.pause_of(queue)?, gates::closed(settings, &home.layout.cache)) {
            (Some(_), _) => "paused".to_owned(),
            (None, Some(gate)) => format!("held: {gate}"),
            (None, None) => format!("start {} of {due} due", due.min(settings.slots.saturating_sub(taken))),
        };
        plan.lines.push(format!("queue {queue}: {state}; {taken} of {} slots taken", settings.slots));
    }
    for (queue, format, _, obstacle) in obstacles(home, &*store)? {
        plan.lines.push(format!("queue {queue}: {format} waits: {obstacle}"));
    }
    if let Some(before) = home.cache.policy.due_before(now) {
        plan.lines.push(format!("sweep {} files", store.due_files(before, now, (0, 100_000))?.len()));
    }
    Ok(plan)
}
