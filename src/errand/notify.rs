//! `[[notify]]`: commands that tell others how jobs ended.
//!
//! What is to be told stands in the database from the moment a job ends, written in the same transaction, and goes when
//! its command has ended with 0. Whoever dies between the two tells it a second time, never not at all. Where machines share
//! the queue each delivery is taken by one of them, for a little longer than its command may run.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};

use super::{Called, Errand, Errands, Step};
use crate::bind::Home;
use crate::clock;
use crate::config::{Format, Limits};
use crate::key;
use crate::rules;
use crate::store::{Delivery, Store};

/// How much longer than its command a delivery is held: what ending the command's processes may take, and some room.
const MARGIN: Duration = Duration::from_secs(20);

/// Whether something is to be told to a listener that is still configured.
pub(super) fn is_due(home: &Home, store: &dyn Store, now: DateTime<Utc>) -> Result<bool> {
    let listeners: Vec<String> = home.config.listeners().map(|(name, _)| name).collect();
    Ok(!listeners.is_empty() && store.next_delivery(&listeners, now)?.is_some())
}

impl Errands<'_> {
    /// Takes the delivery that is due next to a listener that is still configured and did not fail a moment ago.
    fn take(&mut self) -> Result<Option<Delivery>> {
        let known = self.home.config.listeners().filter(|(name, _)| !self.refusing.contains(name));
        let (listeners, timeouts): (Vec<_>, Vec<_>) = known.map(|(name, notify)| (name, notify.timeout.0)).unzip();
        let Some(longest) = timeouts.into_iter().max() else { return Ok(None) };
        self.store.take_delivery(&listeners, clock::now(), longest + MARGIN)
    }

    /// Makes one delivery.
    pub(super) fn tell_one(&mut self) -> Result<Step> {
        let Some(delivery) = self.take()? else {
            return Ok(Step::Idle);
        };
        match self.tell(&delivery)? {
            Called::Well(_) => self.store.delivered(delivery.id)?,
            Called::Badly(error) => {
                let now = clock::now();
                let again = rules::tell_again(delivery.tries, delivery.since, now);
                self.store.undelivered(delivery.id, &error, again)?;
                self.refusing.insert(delivery.listener);
            }
            Called::Stopped => {
                self.store.leave_delivery(delivery.id, clock::now())?;
                return Ok(Step::Idle);
            }
            Called::Undead => {
                let again = rules::tell_again(delivery.tries, delivery.since, clock::now());
                self.store.undelivered(delivery.id, "signal 9 did not end all of its processes", again)?;
                return Ok(Step::Undead);
            }
        }
        Ok(Step::Done)
    }

    fn tell(&self, delivery: &Delivery) -> Result<Called> {
        let mut listeners = self.home.config.listeners();
        let Some((_, notify)) = listeners.find(|(name, _)| *name == delivery.listener) else {
            return Ok(Called::Badly("it is not configured any more".to_owned()));
        };
        // Front ends may write the database: a name that is none of ours makes no path.
        if !key::is_published_name(&delivery.filename) {
            return Ok(Called::Badly("the file name in its row is none of ours".to_owned()));
        }
        let reason = delivery.reason.map_or("", |reason| reason.text());
        let (detail, meta) = (delivery.detail.as_deref().unwrap_or(""), delivery.meta.as_deref().unwrap_or(""));
        let ending = [delivery.outcome.text(), reason, detail, meta];
        self.call(&Errand {
            format: &Format::default(),
            command: &notify.command,
            limits: Limits { timeout: notify.timeout, ..Limits::default() },
            key: &delivery.key,
            filename: &delivery.filename,
            job_id: delivery.job_id,
            attempts: delivery.attempts,
            ending,
            variables: self.variables(delivery, ending),
        })
    }

    fn variables(
        &self,
        delivery: &Delivery,
        [state, reason, detail, meta]: [&str; 4],
    ) -> Vec<(&'static str, OsString)> {
        let key = &delivery.key;
        vec![
            ("EXPORT_QUEUE_DELIVERY", delivery.id.to_string().into()),
            ("EXPORT_QUEUE_JOB_ID", delivery.job_id.to_string().into()),
            ("EXPORT_QUEUE_STATE", state.into()),
            ("EXPORT_QUEUE_REASON", reason.into()),
            ("EXPORT_QUEUE_DETAIL", detail.into()),
            ("EXPORT_QUEUE_META", meta.into()),
            ("EXPORT_QUEUE_CLIENT", delivery.client.clone().unwrap_or_default().into()),
            ("EXPORT_QUEUE_TITLE", (&key.title).into()),
            ("EXPORT_QUEUE_LANG", (&key.lang).into()),
            ("EXPORT_QUEUE_FONT", (&key.font).into()),
            ("EXPORT_QUEUE_FORMAT", (&key.format).into()),
            ("EXPORT_QUEUE_FILENAME", (&delivery.filename).into()),
            ("EXPORT_QUEUE_OUTPUT", self.home.layout.published(&delivery.filename).into()),
        ]
    }
}
