//! `[[notify]]`: commands that tell others how jobs ended.
//!
//! What is to be told stands in the database from the moment a job ends, written in the same transaction, and goes when
//! its command has ended with 0. Whoever dies between the two tells it a second time, never not at all.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::Result;
use chrono::{DateTime, Utc};

use super::{Called, Errand, Errands, Step};
use crate::bind::Home;
use crate::clock;
use crate::config::{Format, Limits};
use crate::key;
use crate::rules;
use crate::store::{Delivery, Store};

/// The delivery that is due next to a listener that is still configured and is not to be passed over.
pub(super) fn next(
    home: &Home,
    store: &dyn Store,
    pass_over: &BTreeSet<String>,
    now: DateTime<Utc>,
) -> Result<Option<Delivery>> {
    let known = home.config.listeners().map(|(name, _)| name);
    let listeners: Vec<String> = known.filter(|name| !pass_over.contains(name)).collect();
    if listeners.is_empty() { Ok(None) } else { store.next_delivery(&listeners, now) }
}

impl Errands<'_> {
    /// Makes one delivery.
    pub(super) fn tell_one(&mut self) -> Result<Step> {
        let Some(delivery) = next(self.home, self.store, &self.refusing, clock::now())? else {
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
            Called::Stopped => return Ok(Step::Idle),
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
