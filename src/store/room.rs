//! Room for waiting jobs, the same for each engine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use anyhow::Result;

use super::{Ask, QueueBounds, Requested};

/// What waits already, counted once in a transaction and kept up by hand: a batch would else count the queue for each line.
#[derive(Debug, Default)]
pub(super) struct Room {
    queued: BTreeMap<String, u64>,
    of_client: BTreeMap<(String, String), u64>,
}

impl Room {
    /// The bound that one more job would pass, if there is one. `in_queue` counts the jobs that wait in its queue, `of_client`
    /// those of its client there.
    pub(super) fn refusal(
        &mut self,
        ask: &Ask,
        in_queue: impl FnOnce(i64) -> Result<u64>,
        of_client: impl FnOnce(&str, i64) -> Result<u64>,
    ) -> Result<Option<Requested>> {
        let QueueBounds { queued, per_client } = ask.bounds;
        if queued > 0 && known_or(self.queued.entry(ask.queue.clone()), || in_queue(queued as i64))? >= queued {
            return Ok(Some(Requested::QueueFull));
        }
        if let (true, Some(client)) = (per_client > 0, &ask.client) {
            let known = self.of_client.entry((ask.queue.clone(), client.clone()));
            if known_or(known, || of_client(client, per_client as i64))? >= per_client {
                return Ok(Some(Requested::ClientLimit));
            }
        }
        Ok(None)
    }

    /// Counts one more; what no bound was looked at for is not counted.
    pub(super) fn take(&mut self, ask: &Ask) {
        self.change(ask, |counted| counted + 1);
    }

    /// Takes one back that was counted and is not there.
    #[cfg(feature = "postgres")]
    pub(super) fn give_back(&mut self, ask: &Ask) {
        self.change(ask, |counted| counted.saturating_sub(1));
    }

    fn change(&mut self, ask: &Ask, by: impl Fn(u64) -> u64) {
        if let Some(queued) = self.queued.get_mut(&ask.queue) {
            *queued = by(*queued);
        }
        if self.of_client.is_empty() {
            return;
        }
        let client = ask.client.as_ref().map(|client| (ask.queue.clone(), client.clone()));
        if let Some(own) = client.and_then(|client| self.of_client.get_mut(&client)) {
            *own = by(*own);
        }
    }
}

fn known_or<K: Ord>(known: Entry<'_, K, u64>, count: impl FnOnce() -> Result<u64>) -> Result<u64> {
    Ok(match known {
        Entry::Occupied(known) => *known.get(),
        Entry::Vacant(unknown) => *unknown.insert(count()?),
    })
}
