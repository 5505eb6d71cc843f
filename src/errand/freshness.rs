//! `fingerprint`: a command whose output changes when the source of a file does.
//!
//! The worker runs it before each export, and what it said is kept with the run. Here it is run again for each file that is
//! ready, at most once a minute and those first that waited the longest; when it says something else the file is *aged*, as
//! a sweep does it: every path that was handed out stays openable for one grace. `status` and `request` run nothing.

use anyhow::Result;
use chrono::{DateTime, Duration, Utc};

use super::{Called, Errand, Errands, Step};
use crate::bind::Home;
use crate::clock;
use crate::config::Limits;
use crate::job::Run;
use crate::key;
use crate::store::Store;
use crate::sweep;
use crate::work::FINGERPRINT_LIMIT;

/// A file is not looked at more often than this.
const PAUSE: Duration = Duration::minutes(1);

/// The run whose fingerprint is compared next.
pub(super) fn next(home: &Home, store: &dyn Store, now: DateTime<Utc>) -> Result<Option<Run>> {
    let has_one = home.config.format.iter().filter(|(_, format)| !format.fingerprint.is_empty());
    let formats: Vec<String> = has_one.map(|(name, _)| name.clone()).collect();
    if formats.is_empty() { Ok(None) } else { store.next_to_check(&formats, now - PAUSE) }
}

impl Errands<'_> {
    /// Compares the fingerprint of one file.
    pub(super) fn check_one(&mut self) -> Result<Step> {
        let Some(run) = next(self.home, self.store, clock::now())? else {
            return Ok(Step::Idle);
        };
        // Whatever comes of it, this one waits a minute now.
        self.store.checked(&run.token, clock::now())?;
        if self.ready_file(&run)?.is_none() {
            return Ok(Step::Done);
        }
        match self.ask(&run)? {
            Called::Well(said) if said.is_some() && said != run.fingerprint => {
                if let Some(file) = self.ready_file(&run)? {
                    sweep::age(self.home, self.store, file)?;
                }
            }
            Called::Well(_) => {}
            Called::Badly(error) => {
                tracing::warn!("the fingerprint of {} is not known: {error}", run.filename);
            }
            Called::Stopped => return Ok(Step::Idle),
            Called::Undead => return Ok(Step::Undead),
        }
        Ok(Step::Done)
    }

    /// The file that this run made, if it is ready.
    fn ready_file(&self, run: &Run) -> Result<Option<crate::cache::Facts>> {
        if !key::is_published_name(&run.filename) {
            return Ok(None);
        }
        let file = self.home.cache.ready(&run.filename, clock::now())?.map(|(file, _)| file);
        Ok(file.filter(|file| Some(file.dates.modified) == run.published_at))
    }

    fn ask(&self, run: &Run) -> Result<Called> {
        let Some(format) = self.home.config.format.get(&run.key.format) else {
            return Ok(Called::Badly("its format is not configured any more".to_owned()));
        };
        let own = self.home.config.format_limits(&run.key.format);
        let limits = Limits { timeout: own.timeout.min(FINGERPRINT_LIMIT), ..own };
        self.call(&Errand {
            format,
            command: &format.fingerprint,
            limits,
            key: &run.key,
            filename: &run.filename,
            job_id: run.job_id,
            attempts: 0,
            ending: [run.outcome.text(), "", "", ""],
            variables: vec![
                ("EXPORT_QUEUE_TITLE", (&run.key.title).into()),
                ("EXPORT_QUEUE_LANG", (&run.key.lang).into()),
                ("EXPORT_QUEUE_FONT", (&run.key.font).into()),
                ("EXPORT_QUEUE_FORMAT", (&run.key.format).into()),
            ],
        })
    }
}
