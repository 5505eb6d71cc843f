//! The conformance of `trait Store`: every verb and every answer, the same for each engine, one line an engine.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use export_queue::clock::from_millis;
use export_queue::exit::{Exit, exit_of};
use export_queue::job::{Ended, Failure, Job, Measured, Outcome, Phase, Run, State, Waiting};
use export_queue::key::Key;
use export_queue::store::migrate::NEWEST;
use export_queue::store::moving::{Mark, Movable, Stage};
use export_queue::store::sqlite::Sqlite;
use export_queue::store::{
    Again, Ask, Batch, Bound, Cancelled, Claim, Delivery, FailureNote, Filter, Hold, Listeners, Past, QueueBounds,
    Requested, RetriedAll, Settled, Store,
};
use tempfile::TempDir;

/// A fresh store, and what it lies in.
type Made = (Box<dyn Store>, Option<TempDir>);

macro_rules! conform {
    (on { $($(#[$when:meta])* $engine:ident = $make:path;)+ } every $checks:tt) => {
        $(conform! { @ $(#[$when])* $engine $make, $checks })+
    };
    (@ $(#[$when:meta])* $engine:ident $make:path, { $($check:ident)+ }) => {
        $(#[$when])*
        mod $engine {
            $(#[test]
            fn $check() {
                let (mut store, _dir) = $make();
                super::$check(&mut *store);
            })+
        }
    };
}

conform! {
    on {
        sqlite = super::fresh_sqlite;
        #[cfg(feature = "postgres")]
        postgres = super::fresh_postgres;
    }
    every {
    a_request_makes_one_queued_job
    a_second_request_joins_and_its_priority_only_rises
    a_refresh_marks_the_live_job_as_wanted_anew
    a_young_failure_is_the_answer_and_an_old_one_gives_way
    a_retry_starts_afresh_at_once
    a_failure_with_processes_left_is_only_marked_as_wanted
    bounds_refuse_and_store_nothing
    one_client_is_bounded_and_others_are_not
    claims_go_by_rank
    a_claim_says_whose_run_it_is
    only_the_formats_that_can_be_made_are_claimed
    a_queue_claims_only_its_own_jobs
    clients_take_turns
    a_derived_job_is_not_due_while_its_base_is_live
    a_derived_job_whose_time_has_come_waits_for_its_base_too
    a_later_job_is_due_at_its_time
    a_time_beyond_the_horizon_counts_as_reached
    a_published_run_deletes_its_job_and_is_recorded
    what_a_caller_left_with_a_file_goes_with_the_file
    the_end_of_a_run_and_the_next_claim_are_one
    a_claim_keeps_to_the_bound_of_its_queue
    a_look_says_how_a_run_stands
    what_was_not_told_is_left_to_another
    a_refresh_during_the_run_queues_the_job_again
    a_claim_that_read_the_clock_before_a_refresh_serves_it
    a_run_that_lost_its_token_changes_nothing
    a_failed_run_says_why
    a_failure_with_processes_left_keeps_its_token
    what_is_let_go_stays_failed_or_is_queued_where_it_is_wanted
    each_way_back_counts_its_own
    a_job_goes_back_to_its_old_place
    a_fulfilled_job_is_forgotten_and_a_started_one_never
    a_refresh_is_fulfilled_only_by_a_newer_file
    fulfilled_jobs_are_found_by_their_files
    a_cancel_takes_a_queued_job_away
    a_cancel_marks_a_started_job
    a_cancel_ends_a_job_only_with_the_last_who_wants_it
    whoever_wants_a_job_that_would_not_die_is_asked_before_it_goes
    a_job_that_starts_afresh_is_wanted_by_nobody_else
    a_failure_is_dismissed_unless_processes_are_left
    failures_expire_by_age_and_number
    files_due_for_sweeping_are_found_until_they_are_gone
    a_later_run_speaks_for_the_file
    history_is_pruned_but_never_of_a_file_that_is_there
    the_bases_of_live_jobs_are_needed
    every_token_that_a_row_names_is_told
    jobs_are_listed_in_the_order_in_which_they_start
    a_tally_counts_each_queue
    a_tally_takes_a_time_beyond_the_horizon_for_reached
    progress_is_written_by_its_own_run_only
    the_place_in_the_queue_is_counted
    no_queue_is_paused_by_itself
    a_rehearsal_decides_the_same_and_stores_nothing
    who_joins_a_later_job_can_only_bring_it_forward
    a_job_is_waited_for_as_long_as_its_most_patient_caller_does
    a_claim_takes_nothing_that_nobody_waits_for
    nothing_of_a_paused_queue_is_due_or_claimed
    all_failed_jobs_are_queued_again_at_their_old_places
    many_requests_are_stored_all_or_none
    a_batch_comes_to_what_its_lines_come_to_alone
    recent_durations_are_of_successful_runs_of_that_format
    the_formats_ahead_are_told_in_the_order_of_their_start
    runs_are_told_by_what_they_were
    statistics_see_each_run_that_ended_since_then
    old_failures_of_a_state_are_purged_unless_processes_are_left
    a_file_that_is_used_is_not_due
    the_files_that_are_there_are_weighed
    the_fingerprint_that_waited_longest_is_compared_next
    a_retry_tries_the_bases_again_and_what_failed_for_its_sake
    each_end_of_a_job_is_told_to_those_who_listen_for_it
    a_run_that_does_not_end_its_job_is_not_told
    a_delivery_stays_until_it_is_made_or_given_up
    old_deliveries_are_forgotten
    }
}

fn fresh_sqlite() -> Made {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("queue.db");
    std::fs::write(&path, "").expect("an empty file");
    (Box::new(Sqlite::open(&path, "the id").expect("a queue")), Some(dir))
}

#[cfg(feature = "postgres")]
fn fresh_postgres() -> Made {
    use export_queue::store::Patience;
    use export_queue::store::postgres::Postgres;
    let server = crate::harness::server::shared();
    let url = server.url(&server.fresh_database());
    (Box::new(Postgres::open_or_create(&url, "the id", Patience::OWNER).expect("a queue")), None)
}

const LIMIT: Duration = Duration::from_secs(60);
const HOLD: Duration = Duration::from_secs(60);

/// A time, in seconds after some moment.
pub(crate) fn at(secs: i64) -> DateTime<Utc> {
    from_millis(1_700_000_000_000 + secs * 1000)
}

pub(crate) fn ask(title: &str) -> Ask {
    let key = Key {
        title: title.into(),
        lang: "en".into(),
        font: "default".into(),
        format: "epub".into(),
        options: BTreeMap::from([("toc".to_owned(), "yes".to_owned())]),
    };
    Ask {
        key,
        filename: name(title),
        base_filename: None,
        queue: "default".into(),
        client: None,
        meta: None,
        pages: None,
        priority: 10,
        rank: None,
        not_before: None,
        wait_until: None,
        refresh: false,
        retry: false,
        hold: HOLD,
        bounds: QueueBounds::default(),
    }
}

fn of_client(title: &str, client: &str) -> Ask {
    Ask { client: Some(client.into()), ..ask(title) }
}

fn of_format(title: &str, format: &str) -> Ask {
    let mut ask = ask(title);
    ask.key.format = format.into();
    ask
}

fn name(title: &str) -> String {
    format!("{title}.epub")
}

fn claim(token: &str) -> Claim {
    Claim {
        queue: "default".into(),
        formats: vec![("epub".into(), LIMIT)],
        token: token.into(),
        node: "node".into(),
        slot: "default.0".into(),
        worker: "7.8".into(),
        max_running: 0,
        lease: LIMIT,
    }
}

#[track_caller]
fn put(store: &mut dyn Store, ask: &Ask, now: DateTime<Utc>) -> Job {
    match store.request(ask, now).expect("a request") {
        Requested::Queued(job) => job,
        other => panic!("not queued: {other:?}"),
    }
}

#[track_caller]
fn start(store: &mut dyn Store, token: &str, now: DateTime<Utc>) -> Job {
    store.claim(&claim(token), now).expect("a claim").expect("something is due")
}

#[track_caller]
fn find(store: &dyn Store, title: &str) -> Job {
    store.find(&name(title)).expect("a look").expect("a row")
}

fn is_gone(store: &dyn Store, title: &str) -> bool {
    store.find(&name(title)).expect("a look").is_none()
}

fn published(job: &Job, now: DateTime<Utc>) -> Run {
    let measured = Measured { bytes: Some(5), exit_code: Some(0), peak_memory: Some(1 << 40), ..Measured::default() };
    Run { published_at: Some(now), measured, ..job.run(Outcome::Ready, now) }
}

#[track_caller]
fn fail(store: &mut dyn Store, job: &Job, reason: Failure, keeps_token: bool, now: DateTime<Utc>) {
    let run = Run { reason: Some(reason), ..job.run(Outcome::from(reason.state()), now) };
    let note = FailureNote { reason, detail: "in words", keeps_token };
    assert!(store.fail(&run, "node", &note).expect("a failure is written"));
}

/// A job that was asked for at 0, started at 1 and failed at 2.
fn failed(store: &mut dyn Store, title: &str, reason: Failure, keeps_token: bool) -> Job {
    put(store, &ask(title), at(0));
    let job = start(store, &format!("token of {title}"), at(1));
    fail(store, &job, reason, keeps_token, at(2));
    find(store, title)
}

/// Asks, starts and publishes at that time; the token is the title's.
fn publish(store: &mut dyn Store, title: &str, now: DateTime<Utc>) {
    put(store, &ask(title), now);
    let job = start(store, &format!("token of {title} {now}"), now);
    assert_eq!(store.finish(&published(&job, now), "node").unwrap(), Settled::Forgotten);
}

fn a_request_makes_one_queued_job(store: &mut dyn Store) {
    let wish = Ask { meta: Some("{\"a\":1}".into()), pages: Some(3), ..of_client("A", "c") };
    let job = put(store, &wish, at(0));
    assert_eq!((job.key.clone(), job.filename.as_str()), (wish.key, "A.epub"));
    assert_eq!(job.phase, Phase::Queued { later: None });
    assert_eq!((job.submitted_at, job.newer_than, job.cancel_at), (at(0), None, None));
    assert_eq!(
        (job.queue.as_str(), job.client.as_deref(), job.meta.as_deref()),
        ("default", Some("c"), Some("{\"a\":1}"))
    );
    assert_eq!((job.attempts, job.retries, job.interruptions, job.stops, job.base_waits), (0, 0, 0, 0, 0));
    assert_eq!(find(store, "A"), job);
    assert_eq!(store.find_by_id(job.id).unwrap(), Some(job.clone()));
    assert_eq!(store.find_by_id(job.id + 1).unwrap(), None);
    assert_eq!(store.find_by_token("t").unwrap(), None);
    assert!(!store.queue_id().unwrap().is_empty());
}

fn a_second_request_joins_and_its_priority_only_rises(store: &mut dyn Store) {
    let first = put(store, &ask("A"), at(0));
    let urgent = Ask { priority: 2, ..ask("A") };
    let Requested::Joined(job) = store.request(&urgent, at(1)).unwrap() else { panic!("not joined") };
    assert_eq!((job.id, job.priority, job.submitted_at), (first.id, 2, at(0)));
    assert!(job.rank < first.rank);
    let idle = Ask { priority: 900, ..ask("A") };
    let Requested::Joined(later) = store.request(&idle, at(2)).unwrap() else { panic!("not joined") };
    assert_eq!((later.priority, later.rank), (2, job.rank));
    let started = start(store, "t", at(3));
    let Requested::Joined(joined) = store.request(&ask("A"), at(4)).unwrap() else { panic!("not joined") };
    assert_eq!(joined, started);
    assert_eq!(store.list(&Filter::default()).unwrap().len(), 1);
}

fn a_refresh_marks_the_live_job_as_wanted_anew(store: &mut dyn Store) {
    let refresh = Ask { refresh: true, ..ask("A") };
    assert_eq!(put(store, &refresh, at(0)).newer_than, Some(at(0)));
    start(store, "t", at(1));
    let Requested::Joined(job) = store.request(&refresh, at(2)).unwrap() else { panic!("not joined") };
    assert_eq!((job.newer_than, job.wanted_since()), (Some(at(2)), at(2)));
    let Requested::Joined(job) = store.request(&ask("A"), at(3)).unwrap() else { panic!("not joined") };
    assert_eq!(job.newer_than, Some(at(2)), "a plain request takes no refresh back");
}

fn a_young_failure_is_the_answer_and_an_old_one_gives_way(store: &mut dyn Store) {
    let failed = failed(store, "A", Failure::ExitNonzero, false);
    assert_eq!(store.request(&ask("A"), at(61)).unwrap(), Requested::Failing(failed.clone()));
    let again = put(store, &Ask { priority: 20, ..of_client("A", "c") }, at(62));
    assert_eq!((again.id, again.submitted_at, again.priority), (failed.id, at(62), 20));
    assert_eq!((again.attempts, again.client.as_deref()), (0, Some("c")));
    assert_eq!(again.phase, Phase::Queued { later: None });
    assert!(again.rank > failed.rank, "at the end of the queue");
    assert_eq!(start(store, "second", at(63)).attempts, 1);
}

fn a_retry_starts_afresh_at_once(store: &mut dyn Store) {
    failed(store, "A", Failure::TimedOut, false);
    let again = put(store, &Ask { retry: true, ..ask("A") }, at(3));
    assert_eq!((again.attempts, again.submitted_at), (0, at(3)));
}

fn a_failure_with_processes_left_is_only_marked_as_wanted(store: &mut dyn Store) {
    let failed = failed(store, "A", Failure::WouldNotDie, true);
    let retry = Ask { retry: true, ..ask("A") };
    assert_eq!(store.request(&retry, at(500)).unwrap(), Requested::Failing(failed));
    assert_eq!(find(store, "A").state(), State::FailedTimeout);
    assert!(store.claim(&claim("other"), at(501)).unwrap().is_none());
}

fn bounds_refuse_and_store_nothing(store: &mut dyn Store) {
    let bounded = |title| Ask { bounds: QueueBounds { queued: 2, per_client: 0 }, ..ask(title) };
    put(store, &bounded("A"), at(0));
    put(store, &bounded("B"), at(0));
    assert_eq!(store.request(&bounded("C"), at(1)).unwrap(), Requested::QueueFull);
    assert!(is_gone(store, "C"));
    assert!(matches!(store.request(&bounded("A"), at(1)).unwrap(), Requested::Joined(_)), "joining is no new job");
    let elsewhere = Ask { queue: "express".into(), ..bounded("D") };
    put(store, &elsewhere, at(1));
    start(store, "t", at(2));
    put(store, &bounded("C"), at(3));
}

fn one_client_is_bounded_and_others_are_not(store: &mut dyn Store) {
    let bounded = |title, client| Ask { bounds: QueueBounds { queued: 0, per_client: 1 }, ..of_client(title, client) };
    put(store, &bounded("A", "c"), at(0));
    assert_eq!(store.request(&bounded("B", "c"), at(1)).unwrap(), Requested::ClientLimit);
    put(store, &bounded("C", "d"), at(1));
    put(store, &Ask { client: None, ..bounded("D", "") }, at(1));
    put(store, &Ask { client: None, ..bounded("E", "") }, at(1));
    assert_eq!(start(store, "t", at(2)).key.title, "A");
    assert_eq!(store.request(&bounded("B", "c"), at(3)).unwrap(), Requested::ClientLimit, "a started job counts");
}

fn claims_go_by_rank(store: &mut dyn Store) {
    put(store, &ask("late"), at(1));
    put(store, &ask("early"), at(0));
    put(store, &Ask { priority: 9, ..ask("urgent") }, at(2));
    put(store, &Ask { rank: Some(1), ..ask("base") }, at(3));
    let order: Vec<_> = (0..4).map(|n| start(store, &format!("t{n}"), at(4)).key.title).collect();
    assert_eq!(order, ["base", "urgent", "early", "late"]);
    assert!(store.claim(&claim("t9"), at(5)).unwrap().is_none());
}

fn a_claim_says_whose_run_it_is(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    let job = start(store, "t", at(5));
    let phase = Phase::Started {
        token: "t".into(),
        slot: "default.0".into(),
        worker: "7.8".into(),
        since: at(5),
        deadline: at(65),
        progress: None,
    };
    assert_eq!((job.phase.clone(), job.attempts, job.last_run.as_deref()), (phase, 1, Some("t")));
    assert_eq!(store.find_by_token("t").unwrap().as_ref(), Some(&job));
    assert_eq!((store.started().unwrap(), store.started_on("node").unwrap()), (vec![job.clone()], vec![job]));
    assert_eq!(store.count_started("default").unwrap(), 1);
    assert_eq!(store.count_started("express").unwrap(), 0);
}

fn only_the_formats_that_can_be_made_are_claimed(store: &mut dyn Store) {
    put(store, &of_format("pdf first", "pdf"), at(0));
    put(store, &ask("epub second"), at(1));
    let formats = [("epub".to_owned(), LIMIT)];
    assert_eq!(store.due("default", &formats, at(2), 10).unwrap(), 1);
    assert_eq!(start(store, "t", at(2)).key.title, "epub second");
    assert!(store.claim(&claim("u"), at(2)).unwrap().is_none());
    assert_eq!(store.due("default", &[], at(2), 10).unwrap(), 0);
    assert_eq!(store.due_formats("default").unwrap(), ["pdf"]);
    let both = Claim { formats: vec![("epub".into(), LIMIT), ("pdf".into(), LIMIT * 2)], ..claim("u") };
    let job = store.claim(&both, at(3)).unwrap().expect("the other format");
    assert!(matches!(job.phase, Phase::Started { deadline, .. } if deadline == at(123)), "each format has its limit");
}

fn a_queue_claims_only_its_own_jobs(store: &mut dyn Store) {
    put(store, &Ask { queue: "express".into(), ..ask("A") }, at(0));
    assert!(store.claim(&claim("t"), at(1)).unwrap().is_none());
    assert_eq!(store.due("default", &claim("t").formats, at(1), 10).unwrap(), 0);
    assert!(store.claim(&Claim { queue: "express".into(), ..claim("t") }, at(1)).unwrap().is_some());
}

fn clients_take_turns(store: &mut dyn Store) {
    for n in 0..5 {
        put(store, &of_client(&format!("flood {n}"), "crawler"), at(0));
    }
    put(store, &of_client("one", "reader"), at(1));
    put(store, &ask("anonymous"), at(2));
    let order: Vec<_> = (0..4).map(|n| start(store, &format!("t{n}"), at(3)).key.title).collect();
    assert_eq!(order, ["flood 0", "one", "anonymous", "flood 1"]);
}

fn a_derived_job_is_not_due_while_its_base_is_live(store: &mut dyn Store) {
    let formats = [("epub".to_owned(), LIMIT), ("pdf".to_owned(), LIMIT)];
    put(store, &Ask { base_filename: Some(name("A")), filename: "A.pdf".into(), ..of_format("A", "pdf") }, at(0));
    assert_eq!(store.due("default", &formats, at(1), 10).unwrap(), 1, "no base in sight: its worker asks for one");
    let base = put(store, &Ask { rank: Some(at(900).timestamp_millis()), ..ask("A") }, at(1));
    assert_eq!(store.due("default", &formats, at(1), 10).unwrap(), 1, "the base only");
    let claim = |token| Claim { formats: formats.to_vec(), ..claim(token) };
    let first = store.claim(&claim("t"), at(2)).unwrap().expect("the base is due");
    assert_eq!(first.id, base.id);
    assert!(store.claim(&claim("u"), at(3)).unwrap().is_none(), "its base is started");
    fail(store, &first, Failure::ExitNonzero, false, at(4));
    assert_eq!(store.claim(&claim("u"), at(5)).unwrap().expect("the base has failed").filename, "A.pdf");
}

fn a_later_job_is_due_at_its_time(store: &mut dyn Store) {
    let job = put(store, &Ask { not_before: Some(at(100)), ..ask("A") }, at(0));
    assert_eq!(job.phase, Phase::Queued { later: Some((at(100), Waiting::NotBefore)) });
    let formats = claim("t").formats;
    assert_eq!(store.due("default", &formats, at(99), 10).unwrap(), 0);
    assert!(store.claim(&claim("t"), at(99)).unwrap().is_none());
    assert_eq!(store.due("default", &formats, at(100), 10).unwrap(), 1);
    assert_eq!(start(store, "t", at(100)).id, job.id);
    for (title, time) in [("B", 100), ("C", 101)] {
        let past = put(store, &Ask { not_before: Some(at(time)), ..ask(title) }, at(101));
        assert_eq!(past.phase, Phase::Queued { later: None }, "a time that is over is none");
    }
}

fn a_time_beyond_the_horizon_counts_as_reached(store: &mut dyn Store) {
    let day = 24 * 3600;
    put(store, &Ask { not_before: Some(at(399 * day)), ..ask("in a year") }, at(0));
    put(store, &Ask { not_before: Some(at(401 * day)), ..ask("by a wrong clock") }, at(0));
    assert_eq!(store.due("default", &claim("t").formats, at(1), 10).unwrap(), 1);
    assert_eq!(start(store, "t", at(1)).key.title, "by a wrong clock");
    assert!(store.claim(&claim("u"), at(1)).unwrap().is_none());
}

fn a_published_run_deletes_its_job_and_is_recorded(store: &mut dyn Store) {
    put(store, &Ask { meta: Some("{}".into()), ..of_client("A", "c") }, at(0));
    let job = start(store, "t", at(1));
    let run = Run { detail: Some("words".into()), ..published(&job, at(3)) };
    assert_eq!(store.finish(&run, "node").unwrap(), Settled::Forgotten);
    assert!(is_gone(store, "A"));
    assert_eq!(store.history(Some("A.epub"), 9).unwrap(), std::slice::from_ref(&run));
    assert_eq!(store.finish(&run, "node").unwrap(), Settled::Lost, "once");
    assert_eq!(store.history(None, 9).unwrap().len(), 1);
    assert!(store.history(Some("B.epub"), 9).unwrap().is_empty());
}

fn what_a_caller_left_with_a_file_goes_with_the_file(store: &mut dyn Store) {
    let of = |store: &dyn Store| store.meta_of_file("A.epub").unwrap();
    assert_eq!(of(store), None);
    for (number, meta) in [(0, Some("1")), (10, Some("2")), (20, None)] {
        put(store, &Ask { meta: meta.map(str::to_owned), ..ask("A") }, at(number));
        let job = start(store, &format!("t{number}"), at(number + 1));
        store.finish(&published(&job, at(number + 2)), "node").unwrap();
        assert_eq!(of(store).as_deref(), meta);
    }
    put(store, &Ask { meta: Some("3".into()), ..ask("A") }, at(30));
    let job = start(store, "t30", at(31));
    store.finish(&published(&job, at(32)), "node").unwrap();
    put(store, &ask("A"), at(40));
    let failing = start(store, "t40", at(41));
    let note = FailureNote { reason: Failure::ExitNonzero, detail: "", keeps_token: false };
    assert!(store.fail(&failing.run(Outcome::FailedUnknown, at(42)), "node", &note).unwrap());
    assert_eq!(of(store).as_deref(), Some("3"), "a later run that failed made no file");
    store.swept(&["A.epub".to_owned()]).unwrap();
    assert_eq!(of(store), None);
}

fn the_end_of_a_run_and_the_next_claim_are_one(store: &mut dyn Store) {
    for title in ["A", "B", "C"] {
        put(store, &ask(title), at(0));
    }
    let job = start(store, "t1", at(1));
    let (settled, next) = store.finish_and_claim(&published(&job, at(2)), &claim("t2"), at(2)).unwrap();
    let next = next.expect("a job is due");
    assert_eq!((settled, next.phase.token(), next.attempts), (Settled::Forgotten, Some("t2"), 1));
    assert!(is_gone(store, "A") && find(store, &next.key.title) == next);
    // A run that lost its token ends nothing; a claim is a claim all the same.
    let (settled, last) = store.finish_and_claim(&published(&job, at(3)), &claim("t3"), at(3)).unwrap();
    assert_eq!((settled, last.map(|job| job.key.title)), (Settled::Lost, Some("C".to_owned())));
    assert_eq!(store.history(None, 10).unwrap().len(), 1);
    let (settled, none) = store.finish_and_claim(&published(&next, at(4)), &claim("t4"), at(4)).unwrap();
    assert_eq!((settled, none), (Settled::Forgotten, None));
    // What was made from the file that has just been published can be claimed with it.
    put(store, &ask("base"), at(5));
    put(store, &Ask { base_filename: Some(name("base")), ..ask("derived") }, at(5));
    let base = store.claim(&claim("t5"), at(6)).unwrap().expect("the base");
    let (_, derived) = store.finish_and_claim(&published(&base, at(7)), &claim("t6"), at(7)).unwrap();
    assert_eq!(derived.map(|job| job.key.title), Some("derived".to_owned()));
}

fn a_claim_keeps_to_the_bound_of_its_queue(store: &mut dyn Store) {
    for title in ["A", "B", "C", "D"] {
        put(store, &ask(title), at(0));
    }
    put(store, &Ask { queue: "other".into(), ..ask("E") }, at(0));
    let bounded = |token: &str| Claim { max_running: 2, ..claim(token) };
    let other = Claim { queue: "other".into(), ..bounded("t0") };
    assert!(store.claim(&other, at(1)).unwrap().is_some());
    let first = store.claim(&bounded("t1"), at(1)).unwrap().expect("none runs yet");
    let second = store.claim(&bounded("t2"), at(1)).unwrap().expect("one runs");
    assert_eq!(store.claim(&bounded("t3"), at(1)).unwrap(), None);
    // The run that ends makes room for the one that begins with it.
    let (_, next) = store.finish_and_claim(&published(&first, at(2)), &bounded("t4"), at(2)).unwrap();
    assert!(next.is_some());
    assert_eq!(store.claim(&bounded("t5"), at(2)).unwrap(), None);
    // What does not die takes its place.
    fail(store, &second, Failure::WouldNotDie, true, at(3));
    assert_eq!(store.claim(&bounded("t6"), at(3)).unwrap(), None);
    assert!(store.let_go("t2").unwrap());
    assert!(store.claim(&bounded("t7"), at(4)).unwrap().is_some());
}

fn a_look_says_how_a_run_stands(store: &mut dyn Store) {
    assert_eq!(store.renew("t", LIMIT).unwrap(), Hold::Lost);
    put(store, &ask("A"), at(0));
    start(store, "t", at(1));
    assert_eq!(store.renew("t", LIMIT).unwrap(), Hold::Mine);
    store.cancel("A.epub", None, true, at(2)).unwrap();
    assert_eq!(store.renew("t", LIMIT).unwrap(), Hold::Cancelled);
    let job = find(store, "A");
    fail(store, &job, Failure::WouldNotDie, true, at(3));
    assert_eq!(store.renew("t", LIMIT).unwrap(), Hold::Lost, "it is over, although processes are left");
}

fn a_refresh_during_the_run_queues_the_job_again(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    let job = start(store, "t", at(1));
    store.request(&Ask { refresh: true, ..ask("A") }, at(2)).unwrap();
    assert_eq!(store.finish(&published(&job, at(3)), "node").unwrap(), Settled::QueuedAgain);
    let again = find(store, "A");
    assert_eq!((&again.phase, again.rank), (&Phase::Queued { later: None }, job.rank));
    assert!(store.fulfilled(at(0)).unwrap().is_empty(), "what it published may be as old as its beginning");
    assert!(!store.forget(again.id, at(3)).unwrap());
    assert!(again.wanted_since() > at(3) && again.wanted_since() < at(4));
    assert_eq!(store.history(None, 9).unwrap().len(), 1, "the first run has published too");
    let second = start(store, "u", at(4));
    assert_eq!(store.finish(&published(&second, at(5)), "node").unwrap(), Settled::Forgotten);
}

fn a_claim_that_read_the_clock_before_a_refresh_serves_it(store: &mut dyn Store) {
    put(store, &Ask { refresh: true, ..ask("A") }, at(2));
    let job = start(store, "t", at(1));
    assert_eq!(store.finish(&published(&job, at(3)), "node").unwrap(), Settled::Forgotten);
}

fn a_run_that_lost_its_token_changes_nothing(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    let old = start(store, "old", at(1));
    assert!(store.requeue("old", Again::Interrupted, None).unwrap());
    let new = start(store, "new", at(2));
    let note = FailureNote { reason: Failure::ExitNonzero, detail: "", keeps_token: false };
    assert_eq!(store.finish(&published(&old, at(3)), "node").unwrap(), Settled::Lost);
    assert!(!store.fail(&old.run(Outcome::FailedUnknown, at(3)), "node", &note).unwrap());
    assert!(!store.requeue("old", Again::Stopped, Some((&old.run(Outcome::Stopped, at(3)), "node"))).unwrap());
    assert!(!store.let_go("old").unwrap());
    store.progress("old", "half").unwrap();
    assert_eq!(find(store, "A"), new);
    assert!(store.history(None, 9).unwrap().is_empty());
}

fn a_failed_run_says_why(store: &mut dyn Store) {
    for reason in Failure::ALL {
        let title = reason.text();
        let job = failed(store, title, *reason, false);
        let phase = Phase::Failed { reason: *reason, detail: "in words".into(), at: at(2), token: None };
        assert_eq!((job.phase, job.cancel_at), (phase, None));
        assert_eq!(job.last_run.as_deref(), Some(&*format!("token of {title}")), "its log is kept");
        let run = store.history(Some(&name(title)), 1).unwrap().pop().expect("a record");
        assert_eq!((run.outcome, run.reason), (Outcome::from(reason.state()), Some(*reason)));
    }
}

fn a_failure_with_processes_left_keeps_its_token(store: &mut dyn Store) {
    let job = failed(store, "A", Failure::WouldNotDie, true);
    assert!(matches!(&job.phase, Phase::Failed { token: Some(token), .. } if token == "token of A"));
    assert_eq!(store.find_by_token("token of A").unwrap(), Some(job.clone()));
    assert!(!store.dismiss("A.epub").unwrap());
    assert_eq!(store.expire_failed(at(1000), 0, at(1000)).unwrap(), 0);
    assert!(!store.forget(job.id, at(1000)).unwrap());
    assert!(!store.requeue("token of A", Again::Wanted, None).unwrap());
    assert_eq!(find(store, "A"), job);
}

fn what_is_let_go_stays_failed_or_is_queued_where_it_is_wanted(store: &mut dyn Store) {
    let unwanted = failed(store, "A", Failure::WouldNotDie, true);
    let wanted = failed(store, "B", Failure::WouldNotDie, true);
    store.request(&ask("B"), at(300)).unwrap();
    assert!(store.let_go("token of A").unwrap());
    assert!(store.let_go("token of B").unwrap());
    assert!(!store.let_go("token of A").unwrap(), "once");
    let (a, b) = (find(store, "A"), find(store, "B"));
    assert_eq!(
        (a.id, a.state(), store.find_by_token("token of A").unwrap()),
        (unwanted.id, State::FailedTimeout, None)
    );
    assert_eq!((b.id, b.phase.clone(), b.submitted_at), (wanted.id, Phase::Queued { later: None }, at(300)));
    assert_eq!((b.attempts, b.interruptions), (0, 0));
    assert_eq!(start(store, "t", at(301)).id, wanted.id);
}

fn each_way_back_counts_its_own(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    let counts = |job: &Job| (job.attempts, job.retries, job.interruptions, job.stops, job.base_waits);
    let later = |secs| Some((at(secs), Waiting::BackingOff));
    let table = [
        (Again::Interrupted, (1, 0, 1, 0, 0), None),
        (Again::Stopped, (2, 0, 1, 1, 0), None),
        (Again::Retry(at(50)), (3, 1, 1, 1, 0), later(50)),
        (Again::Base, (3, 1, 1, 1, 1), None),
        (Again::Unable(at(60)), (3, 1, 1, 1, 1), later(60)),
        (Again::Wanted, (4, 1, 1, 1, 1), None),
    ];
    for (n, (again, expected, wait)) in table.into_iter().enumerate() {
        let now = at(100 * i64::try_from(n).unwrap());
        let token = format!("t{n}");
        let job = start(store, &token, now);
        let run = job.run(Outcome::Retried, now);
        assert!(store.requeue(&token, again, Some((&run, "node"))).unwrap());
        let job = find(store, "A");
        assert_eq!((counts(&job), &job.phase), (expected, &Phase::Queued { later: wait }), "{again:?}");
        assert_eq!(store.history(None, 99).unwrap().len(), n + 1);
    }
}

fn a_job_goes_back_to_its_old_place(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    put(store, &ask("B"), at(1));
    let job = start(store, "t", at(2));
    store.cancel("A.epub", None, false, at(3)).unwrap();
    store.requeue("t", Again::Wanted, None).unwrap();
    let back = find(store, "A");
    assert_eq!((back.rank, back.submitted_at, back.cancel_at), (job.rank, at(0), None));
    assert_eq!(start(store, "u", at(4)).key.title, "A");
}

fn a_fulfilled_job_is_forgotten_and_a_started_one_never(store: &mut dyn Store) {
    let job = put(store, &ask("A"), at(10));
    assert!(!store.forget(job.id, at(9)).unwrap(), "the file is older than the wish");
    start(store, "t", at(11));
    assert!(!store.forget(job.id, at(20)).unwrap(), "it belongs to its worker");
    store.requeue("t", Again::Stopped, None).unwrap();
    assert!(store.forget(job.id, at(10)).unwrap());
    assert!(is_gone(store, "A"));
    assert!(!store.forget(job.id, at(10)).unwrap(), "once");
    let failed = failed(store, "B", Failure::ExitNonzero, false);
    assert!(store.forget(failed.id, at(5)).unwrap(), "a failure too");
}

fn a_refresh_is_fulfilled_only_by_a_newer_file(store: &mut dyn Store) {
    let job = put(store, &ask("A"), at(0));
    store.request(&Ask { refresh: true, ..ask("A") }, at(10)).unwrap();
    assert!(!store.forget(job.id, at(9)).unwrap());
    assert!(store.forget(job.id, at(10)).unwrap());
}

fn fulfilled_jobs_are_found_by_their_files(store: &mut dyn Store) {
    publish(store, "A", at(10));
    let late = put(store, &ask("A"), at(11));
    assert!(store.fulfilled(at(0)).unwrap().is_empty(), "asked for after the file");
    assert!(store.dismiss("A.epub").is_ok_and(|done| !done), "a queued job is no failure");
    store.cancel("A.epub", None, true, at(12)).unwrap();
    let early = put(store, &ask("A"), at(9));
    assert_ne!(early.id, late.id);
    assert_eq!(store.fulfilled(at(0)).unwrap(), [(early.id, name("A"))]);
    assert!(store.fulfilled(at(11)).unwrap().is_empty(), "published before that");
    start(store, "t", at(13));
    assert!(store.fulfilled(at(0)).unwrap().is_empty(), "a worker has it");
    store.requeue("t", Again::Stopped, None).unwrap();
    store.swept(&[name("A")]).unwrap();
    assert!(store.fulfilled(at(0)).unwrap().is_empty(), "the file is gone");
}

fn a_cancel_takes_a_queued_job_away(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    assert_eq!(store.cancel("A.epub", None, false, at(1)).unwrap(), Cancelled::Removed);
    assert!(is_gone(store, "A"));
    assert_eq!(store.cancel("A.epub", None, true, at(1)).unwrap(), Cancelled::NotLive);
    failed(store, "B", Failure::TimedOut, false);
    assert_eq!(store.cancel("B.epub", None, true, at(3)).unwrap(), Cancelled::NotLive);
}

fn a_cancel_marks_a_started_job(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    let job = start(store, "t", at(1));
    assert_eq!(store.cancel("A.epub", None, false, at(2)).unwrap(), Cancelled::Marked);
    assert_eq!(find(store, "A"), Job { cancel_at: Some(at(2)), ..job.clone() });
    fail(store, &job, Failure::Cancelled, false, at(3));
    assert_eq!(find(store, "A").cancel_at, None);
}

fn a_cancel_ends_a_job_only_with_the_last_who_wants_it(store: &mut dyn Store) {
    for client in ["a", "b", "c", "c"] {
        store.request(&of_client("A", client), at(0)).unwrap();
    }
    assert_eq!(store.cancel("A.epub", None, false, at(1)).unwrap(), Cancelled::StillWanted(3));
    assert_eq!(store.cancel("A.epub", Some("a"), false, at(1)).unwrap(), Cancelled::StillWanted(2));
    assert_eq!(store.cancel("A.epub", Some("a"), false, at(1)).unwrap(), Cancelled::StillWanted(2));
    assert_eq!(store.cancel("A.epub", Some("b"), false, at(1)).unwrap(), Cancelled::StillWanted(1));
    assert_eq!(find(store, "A").state(), State::Queued);
    assert_eq!(store.cancel("A.epub", Some("c"), false, at(1)).unwrap(), Cancelled::Removed);
    store.request(&of_client("A", "d"), at(2)).unwrap();
    assert_eq!(store.cancel("A.epub", None, true, at(3)).unwrap(), Cancelled::Removed, "by force");
    put(store, &of_client("A", "e"), at(4));
    assert_eq!(
        store.cancel("A.epub", Some("e"), false, at(5)).unwrap(),
        Cancelled::Removed,
        "d's wish went with its job"
    );
}

fn whoever_wants_a_job_that_would_not_die_is_asked_before_it_goes(store: &mut dyn Store) {
    put(store, &of_client("A", "a"), at(0));
    let job = start(store, "t", at(1));
    fail(store, &job, Failure::WouldNotDie, true, at(2));
    store.request(&of_client("A", "b"), at(3)).unwrap();
    assert!(store.let_go("t").unwrap());
    assert_eq!(store.cancel("A.epub", Some("a"), false, at(4)).unwrap(), Cancelled::StillWanted(1));
}

fn a_job_that_starts_afresh_is_wanted_by_nobody_else(store: &mut dyn Store) {
    put(store, &of_client("A", "a"), at(0));
    let job = start(store, "t", at(1));
    fail(store, &job, Failure::ExitNonzero, false, at(2));
    put(store, &of_client("A", "b"), at(100));
    assert_eq!(store.cancel("A.epub", Some("b"), false, at(101)).unwrap(), Cancelled::Removed);
}

fn a_derived_job_whose_time_has_come_waits_for_its_base_too(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    let mut later = Ask { base_filename: Some(name("A")), not_before: Some(at(10)), ..of_format("B", "pdf") };
    later.filename = "A.pdf".into();
    put(store, &later, at(0));
    let formats = [("pdf".to_owned(), LIMIT)];
    assert_eq!(store.due("default", &formats, at(20), 10).unwrap(), 0);
    store.cancel("A.epub", None, true, at(20)).unwrap();
    assert_eq!(store.due("default", &formats, at(20), 10).unwrap(), 1);
}

fn a_tally_takes_a_time_beyond_the_horizon_for_reached(store: &mut dyn Store) {
    let beyond = at(401 * 24 * 3600);
    put(store, &Ask { not_before: Some(beyond), ..ask("A") }, at(0));
    assert_eq!(store.tally(at(0)).unwrap()[0].due, 1);
}

fn a_failure_is_dismissed_unless_processes_are_left(store: &mut dyn Store) {
    failed(store, "A", Failure::ExitNonzero, false);
    assert!(store.dismiss("A.epub").unwrap());
    assert!(is_gone(store, "A"));
    assert!(!store.dismiss("A.epub").unwrap());
    put(store, &ask("B"), at(0));
    assert!(!store.dismiss("B.epub").unwrap());
    start(store, "t", at(1));
    assert!(!store.dismiss("B.epub").unwrap());
}

fn failures_expire_by_age_and_number(store: &mut dyn Store) {
    for (n, title) in ["A", "B", "C", "D"].into_iter().enumerate() {
        put(store, &ask(title), at(0));
        let job = start(store, title, at(1));
        fail(store, &job, Failure::ExitNonzero, false, at(10 + i64::try_from(n).unwrap()));
    }
    put(store, &ask("live"), at(0));
    assert_eq!(store.expire_failed(at(10), 100, at(20)).unwrap(), 0);
    assert_eq!(store.expire_failed(at(11), 100, at(20)).unwrap(), 1, "older than that");
    assert!(is_gone(store, "A"));
    assert_eq!(store.expire_failed(at(0), 2, at(20)).unwrap(), 1, "beyond the number, the oldest first");
    assert!(is_gone(store, "B") && !is_gone(store, "C") && !is_gone(store, "D"));
    let before = at(-401 * 24 * 3600);
    assert_eq!(store.expire_failed(before, 100, before).unwrap(), 2, "from further ahead than a clock can be wrong");
    assert_eq!(find(store, "live").state(), State::Queued);
}

fn files_due_for_sweeping_are_found_until_they_are_gone(store: &mut dyn Store) {
    publish(store, "A", at(10));
    publish(store, "B", at(20));
    publish(store, "C", at(30));
    assert!(store.due_files(at(10), at(40), (0, 9)).unwrap().is_empty());
    assert_eq!(store.due_files(at(30), at(40), (0, 9)).unwrap(), [name("A"), name("B")]);
    assert_eq!(store.due_files(at(30), at(40), (0, 1)).unwrap(), [name("A")]);
    store.still_there(&name("A"), at(25)).unwrap();
    assert_eq!(store.due_files(at(25), at(40), (0, 9)).unwrap(), [name("B")], "younger than its run says");
    store.swept(&[name("B"), name("nobody's")]).unwrap();
    store.swept(&[]).unwrap();
    assert_eq!(store.due_files(at(31), at(40), (0, 9)).unwrap(), [name("A"), name("C")]);
    assert_eq!(
        store.due_files(at(0), at(-31), (0, 9)).unwrap(),
        [name("C")],
        "from a clock that was wrong by a minute"
    );
}

fn a_later_run_speaks_for_the_file(store: &mut dyn Store) {
    publish(store, "A", at(10));
    publish(store, "A", at(20));
    assert!(store.due_files(at(15), at(40), (0, 9)).unwrap().is_empty());
    assert_eq!(store.due_files(at(21), at(40), (0, 9)).unwrap(), [name("A")]);
    let runs = store.history(Some("A.epub"), 9).unwrap();
    assert_eq!(runs.iter().map(|run| run.finished_at).collect::<Vec<_>>(), [at(20), at(10)], "the latest first");
    assert_eq!(store.history(Some("A.epub"), 1).unwrap().len(), 1);
}

fn runs_are_told_by_what_they_were(store: &mut dyn Store) {
    publish(store, "A", at(10));
    publish(store, "B", at(20));
    failed(store, "F", Failure::TimedOut, false);
    let told = |past: Past| {
        let runs = store.runs(&past).unwrap();
        runs.into_iter().map(|run| run.key.title).collect::<Vec<_>>()
    };
    assert_eq!(told(Past::default()), ["B", "A", "F"]);
    assert_eq!(told(Past { since: Some(at(10)), ..Past::default() }), ["B", "A"]);
    assert_eq!(told(Past { outcome: Some(Outcome::FailedTimeout), ..Past::default() }), ["F"]);
    assert_eq!(told(Past { format: Some("epub".into()), limit: Some(2), ..Past::default() }), ["B", "A"]);
    assert_eq!(told(Past { format: Some("pdf".into()), ..Past::default() }), [""; 0]);
    assert_eq!(told(Past { lang: Some("bn".into()), ..Past::default() }), [""; 0]);
    assert_eq!(told(Past { client: Some("c".into()), ..Past::default() }), [""; 0]);
    let of_a = Past { filename: Some(name("A")), ..Past::default() };
    assert_eq!(told(of_a.clone()), ["A"]);
    assert_eq!(told(Past { since: Some(at(11)), ..of_a }), [""; 0]);
}

fn statistics_see_each_run_that_ended_since_then(store: &mut dyn Store) {
    put(store, &of_client("C", "c"), at(1));
    let job = start(store, "t", at(3));
    store.finish(&published(&job, at(9)), "node").unwrap();
    failed(store, "F", Failure::TimedOut, false);
    let seen = |since| {
        let mut seen = Vec::new();
        store.ended(since, &mut |ended| seen.push(ended)).unwrap();
        seen
    };
    assert_eq!(seen(at(0)).len(), 2);
    assert_eq!(seen(at(10)), []);
    let made = Ended {
        format: "epub".into(),
        lang: "en".into(),
        client: Some("c".into()),
        outcome: Outcome::Ready,
        reason: None,
        submitted_at: at(1),
        started_at: at(3),
        finished_at: at(9),
        bytes: Some(5),
        peak_memory: Some(1 << 40),
        cpu_millis: None,
    };
    assert_eq!(seen(at(9)), [made]);
}

fn history_is_pruned_but_never_of_a_file_that_is_there(store: &mut dyn Store) {
    for (title, secs) in [("A", 10), ("B", 20), ("C", 30), ("D", 40)] {
        publish(store, title, at(secs));
    }
    assert_eq!(store.prune_history(at(100), 0).unwrap(), 0);
    store.swept(&[name("A"), name("B"), name("C")]).unwrap();
    assert_eq!(store.prune_history(at(20), 100).unwrap(), 1, "ended before that");
    assert!(store.history(Some("A.epub"), 9).unwrap().is_empty());
    assert_eq!(store.prune_history(at(0), 2).unwrap(), 1, "beyond the number");
    assert!(store.history(Some("B.epub"), 9).unwrap().is_empty());
    assert_eq!(store.history(None, 9).unwrap().len(), 2);
}

fn the_bases_of_live_jobs_are_needed(store: &mut dyn Store) {
    let derived = |format: &str, base: &str| Ask {
        base_filename: Some(base.into()),
        filename: format!("A.{format}"),
        ..of_format("A", format)
    };
    put(store, &derived("pdf", "A.epub"), at(7));
    put(store, &derived("mobi", "A.epub"), at(5));
    put(store, &derived("azw3", "A.html"), at(9));
    put(store, &ask("B"), at(1));
    let mut needed = store.needed_bases().unwrap();
    needed.sort();
    assert_eq!(needed, [("A.epub".to_owned(), at(5)), ("A.html".to_owned(), at(9))]);
    let mobi = Claim { formats: vec![("mobi".into(), LIMIT)], ..claim("t") };
    let job = store.claim(&mobi, at(10)).unwrap().unwrap();
    assert_eq!(store.needed_bases().unwrap().len(), 2, "a started job still needs it");
    fail(store, &job, Failure::ExitNonzero, false, at(11));
    assert!(store.needed_bases().unwrap().contains(&("A.epub".to_owned(), at(7))));
}

fn every_token_that_a_row_names_is_told(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    put(store, &ask("B"), at(1));
    start(store, "started", at(2));
    let job = start(store, "failed", at(3));
    fail(store, &job, Failure::ExitNonzero, false, at(4));
    let mut tokens = store.tokens().unwrap();
    tokens.sort();
    assert_eq!(tokens, ["failed", "started"]);
    store.dismiss("B.epub").unwrap();
    assert_eq!(store.tokens().unwrap(), ["started"]);
}

fn jobs_are_listed_in_the_order_in_which_they_start(store: &mut dyn Store) {
    failed(store, "failed", Failure::TimedOut, false);
    put(store, &ask("started"), at(3));
    start(store, "t", at(4));
    put(store, &ask("second"), at(6));
    put(store, &ask("first"), at(5));
    put(store, &Ask { queue: "express".into(), ..of_format("other", "pdf") }, at(1));
    let titles =
        |filter: Filter| -> Vec<String> { store.list(&filter).unwrap().into_iter().map(|job| job.key.title).collect() };
    let any = Filter::default;
    assert_eq!(titles(any()), ["started", "first", "second", "other", "failed"]);
    assert_eq!(titles(Filter { limit: Some(2), ..any() }), ["started", "first"]);
    assert_eq!(titles(Filter { state: Some(State::Queued), ..any() }), ["first", "second", "other"]);
    assert_eq!(titles(Filter { state: Some(State::FailedTimeout), ..any() }), ["failed"]);
    assert_eq!(titles(Filter { state: Some(State::FailedUnknown), ..any() }), [""; 0]);
    assert_eq!(titles(Filter { queue: Some("express".into()), ..any() }), ["other"]);
    assert_eq!(titles(Filter { format: Some("pdf".into()), ..any() }), ["other"]);
}

fn a_tally_counts_each_queue(store: &mut dyn Store) {
    assert!(store.tally(at(0)).unwrap().is_empty());
    failed(store, "failed", Failure::TimedOut, false);
    put(store, &ask("started"), at(3));
    start(store, "t", at(4));
    put(store, &Ask { not_before: Some(at(100)), ..ask("later") }, at(5));
    put(store, &ask("due"), at(6));
    put(store, &Ask { queue: "express".into(), ..ask("other") }, at(7));
    let tallies = store.tally(at(8)).unwrap();
    let facts: Vec<_> = tallies
        .iter()
        .map(|tally| (tally.queue.as_str(), tally.queued, tally.due, tally.started, tally.failed, tally.oldest))
        .collect();
    assert_eq!(facts, [("default", 2, 1, 1, 1, Some(at(5))), ("express", 1, 1, 0, 0, Some(at(7)))]);
    assert_eq!(store.tally(at(100)).unwrap()[0].due, 2);
    assert_eq!(store.queues_waiting().unwrap(), ["default", "express"]);
    store.claim(&Claim { queue: "express".into(), ..claim("u") }, at(9)).unwrap().expect("the other");
    assert_eq!(store.queues_waiting().unwrap(), ["default"], "nothing waits in the other any more");
}

fn progress_is_written_by_its_own_run_only(store: &mut dyn Store) {
    put(store, &ask("A"), at(0));
    start(store, "t", at(1));
    store.progress("t", "page 3 of 9").unwrap();
    store.progress("nobody's", "page 4").unwrap();
    let told = |job: Job| matches!(job.phase, Phase::Started { progress: Some(words), .. } if words == "page 3 of 9");
    assert!(told(find(store, "A")));
    store.requeue("t", Again::Stopped, None).unwrap();
    start(store, "u", at(2));
    assert!(!told(find(store, "A")), "a new run begins anew");
}

fn the_place_in_the_queue_is_counted(store: &mut dyn Store) {
    for (n, title) in ["A", "B", "C"].into_iter().enumerate() {
        put(store, &ask(title), at(i64::try_from(n).unwrap()));
    }
    put(store, &Ask { queue: "express".into(), ..ask("other") }, at(-1));
    let places: Vec<_> = ["A", "B", "C"].iter().map(|title| store.ahead(&find(store, title)).unwrap()).collect();
    assert_eq!(places, [0, 1, 2]);
    start(store, "t", at(5));
    assert_eq!(store.ahead(&find(store, "C")).unwrap(), 1, "a started job goes before nobody");
}

fn the_formats_ahead_are_told_in_the_order_of_their_start(store: &mut dyn Store) {
    put(store, &of_format("A", "pdf"), at(1));
    put(store, &of_format("B", "epub"), at(0));
    put(store, &Ask { not_before: Some(at(900)), ..of_format("later", "mobi") }, at(0));
    put(store, &Ask { queue: "express".into(), ..of_format("other", "mobi") }, at(0));
    put(store, &of_format("C", "epub"), at(2));
    put(store, &of_format("D", "mobi"), at(3));
    assert_eq!(store.formats_ahead(&find(store, "C")).unwrap(), ["epub", "pdf"]);
    start(store, "t", at(5));
    assert_eq!(store.formats_ahead(&find(store, "C")).unwrap(), ["pdf"]);
}

fn no_queue_is_paused_by_itself(store: &mut dyn Store) {
    assert_eq!(store.pause_of("default").unwrap(), None);
}

fn a_rehearsal_decides_the_same_and_stores_nothing(store: &mut dyn Store) {
    assert!(matches!(store.rehearse(&ask("A"), at(0)).unwrap(), Requested::Queued(_)));
    assert!(is_gone(store, "A"));
    let job = put(store, &ask("A"), at(0));
    let urgent = Ask { priority: 1, ..ask("A") };
    assert!(matches!(store.rehearse(&urgent, at(1)).unwrap(), Requested::Joined(joined) if joined.priority == 1));
    assert_eq!(find(store, "A"), job);
    let full = Ask { bounds: QueueBounds { queued: 1, per_client: 0 }, ..ask("B") };
    assert_eq!(store.rehearse(&full, at(1)).unwrap(), Requested::QueueFull);
}

fn who_joins_a_later_job_can_only_bring_it_forward(store: &mut dyn Store) {
    let later = |secs| Ask { not_before: Some(at(secs)), ..ask("A") };
    let due = |store: &dyn Store| match find(store, "A").phase {
        Phase::Queued { later } => later.map(|(at, _)| at),
        other => panic!("not queued: {other:?}"),
    };
    put(store, &later(60), at(0));
    store.request(&later(90), at(1)).unwrap();
    assert_eq!(due(store), Some(at(60)));
    store.request(&later(30), at(1)).unwrap();
    assert_eq!(due(store), Some(at(30)));
    store.request(&ask("A"), at(1)).unwrap();
    assert_eq!(due(store), None);
}

fn a_job_is_waited_for_as_long_as_its_most_patient_caller_does(store: &mut dyn Store) {
    let until = |title: &str, secs| Ask { wait_until: Some(at(secs)), ..ask(title) };
    put(store, &until("A", 10), at(0));
    store.request(&until("A", 20), at(0)).unwrap();
    put(store, &until("B", 10), at(0));
    store.request(&ask("B"), at(0)).unwrap();
    assert_eq!(store.expire_waits(at(19)).unwrap(), 0);
    assert_eq!(store.expire_waits(at(20)).unwrap(), 1);
    let Phase::Failed { reason, token, .. } = find(store, "A").phase else { panic!("not failed") };
    assert_eq!((reason, token), (Failure::WaitExpired, None));
    assert_eq!(find(store, "B").state(), State::Queued);
    // It holds nobody off.
    assert!(matches!(store.request(&ask("A"), at(21)).unwrap(), Requested::Queued(_)));
}

fn a_claim_takes_nothing_that_nobody_waits_for(store: &mut dyn Store) {
    put(store, &Ask { wait_until: Some(at(10)), ..ask("A") }, at(0));
    put(store, &Ask { wait_until: Some(at(11)), ..ask("B") }, at(0));
    assert_eq!(start(store, "t", at(10)).filename, name("B"));
    assert_eq!(find(store, "A").state(), State::FailedUnknown);
    assert_eq!(store.expire_waits(at(99)).unwrap(), 0);
}

fn nothing_of_a_paused_queue_is_due_or_claimed(store: &mut dyn Store) {
    let formats = [("epub".to_owned(), LIMIT)];
    put(store, &ask("A"), at(0));
    put(store, &Ask { not_before: Some(at(1)), ..ask("B") }, at(0));
    store.pause("default", Some("until noon"), at(5)).unwrap();
    store.pause("default", None, at(6)).unwrap();
    let pause = store.pause_of("default").unwrap().expect("a pause");
    assert_eq!((pause.since, pause.message.as_deref()), (at(5), Some("until noon")));
    assert_eq!(store.paused().unwrap(), ["default"]);
    assert_eq!(store.due("default", &formats, at(9), 10).unwrap(), 0);
    assert_eq!(store.claim(&claim("t"), at(9)).unwrap(), None);
    assert!(store.resume("default").unwrap());
    assert!(!store.resume("default").unwrap());
    assert_eq!(store.pause_of("default").unwrap(), None);
    assert_eq!(store.due("default", &formats, at(9), 10).unwrap(), 2);
    start(store, "t", at(9));
}

fn all_failed_jobs_are_queued_again_at_their_old_places(store: &mut dyn Store) {
    let rank = failed(store, "A", Failure::ExitNonzero, false).rank;
    failed(store, "B", Failure::TimedOut, false);
    failed(store, "left", Failure::WouldNotDie, true);
    put(store, &ask("Q"), at(3));
    assert_eq!(store.retry_failed(at(9)).unwrap(), RetriedAll { queued: 2, skipped: 1 });
    let job = find(store, "A");
    assert_eq!((job.state(), job.rank, job.attempts, job.submitted_at), (State::Queued, rank, 0, at(9)));
    assert_eq!(find(store, "left").state(), State::FailedTimeout);
    assert_eq!(start(store, "t", at(9)).filename, name("A"));
}

fn old_failures_of_a_state_are_purged_unless_processes_are_left(store: &mut dyn Store) {
    failed(store, "A", Failure::ExitNonzero, false);
    failed(store, "late", Failure::TimedOut, false);
    failed(store, "left", Failure::WouldNotDie, true);
    assert_eq!(store.purge(State::FailedUnknown, at(2), false).unwrap(), 0);
    assert_eq!(store.purge(State::FailedUnknown, at(3), true).unwrap(), 1);
    assert_eq!(find(store, "A").state(), State::FailedUnknown);
    assert_eq!(store.purge(State::FailedUnknown, at(3), false).unwrap(), 1);
    assert!(is_gone(store, "A"));
    assert_eq!(store.purge(State::FailedTimeout, at(3), false).unwrap(), 1);
    assert_eq!(find(store, "left").state(), State::FailedTimeout);
    put(store, &ask("Q"), at(0));
    assert_eq!(store.purge(State::Queued, at(99), false).unwrap(), 0);
}

fn recent_durations_are_of_successful_runs_of_that_format(store: &mut dyn Store) {
    for (title, secs) in [("A", 4), ("B", 5), ("C", 6)] {
        put(store, &ask(title), at(secs));
        let job = start(store, title, at(secs));
        store.finish(&published(&job, at(2 * secs)), "node").unwrap();
    }
    failed(store, "F", Failure::ExitNonzero, false);
    assert_eq!(store.recent_durations("epub", 2).unwrap(), [Duration::from_secs(6), Duration::from_secs(5)]);
    assert_eq!(store.recent_durations("pdf", 2).unwrap(), [Duration::ZERO; 0]);
}

fn a_file_that_is_used_is_not_due(store: &mut dyn Store) {
    let due = |store: &dyn Store, before| store.due_files(at(before), at(2000), (0, 9)).unwrap();
    publish(store, "A", at(0));
    publish(store, "B", at(1));
    store.accessed(&name("A"), at(59), at(-1)).unwrap();
    assert_eq!(store.accesses(at(0)).unwrap(), [], "it was published since then");
    store.accessed(&name("A"), at(600), at(540)).unwrap();
    store.accessed(&name("A"), at(659), at(599)).unwrap();
    store.accessed(&name("nobody's"), at(600), at(540)).unwrap();
    assert_eq!(store.accesses(at(600)).unwrap(), [(name("A"), at(600))]);
    assert_eq!(store.accesses(at(601)).unwrap(), []);
    assert_eq!(due(store, 600), [name("B")]);
    assert_eq!(due(store, 601), [name("B"), name("A")]);
    store.still_there(&name("A"), at(10)).unwrap();
    assert_eq!(due(store, 11), [name("B"), name("A")], "an aged file was not used");
    let run = store.history(Some(&name("B")), 1).unwrap().remove(0);
    assert_eq!(run.published_at, Some(at(1)));
}

fn the_files_that_are_there_are_weighed(store: &mut dyn Store) {
    assert_eq!(store.present_bytes().unwrap(), 0);
    publish(store, "A", at(0));
    publish(store, "B", at(1));
    publish(store, "A", at(2));
    assert_eq!(store.present_bytes().unwrap(), 10);
    store.swept(&[name("A")]).unwrap();
    assert_eq!(store.present_bytes().unwrap(), 5);
}

fn the_fingerprint_that_waited_longest_is_compared_next(store: &mut dyn Store) {
    let formats = ["epub".to_owned(), "pdf".to_owned()];
    let next = |store: &dyn Store, before| store.next_to_check(&formats, at(before)).unwrap().map(|run| run.filename);
    for (title, fingerprint, secs) in [("B", Some("b"), 1), ("A", Some("a"), 0), ("none", None, 0)] {
        put(store, &ask(title), at(secs));
        let job = start(store, title, at(secs));
        let run = Run { fingerprint: fingerprint.map(str::to_owned), ..published(&job, at(secs)) };
        store.finish(&run, "node").unwrap();
    }
    assert_eq!(store.history(Some(&name("A")), 1).unwrap()[0].fingerprint.as_deref(), Some("a"));
    assert_eq!(store.next_to_check(&["mobi".to_owned()], at(9)).unwrap(), None);
    assert_eq!((next(store, -1), next(store, 9)), (None, Some(name("A"))));
    store.checked("A", at(5)).unwrap();
    assert_eq!((next(store, 0), next(store, 4), next(store, 9)), (None, Some(name("B")), Some(name("B"))));
    store.swept(&[name("B")]).unwrap();
    assert_eq!((next(store, 4), next(store, 5)), (None, Some(name("A"))));
}

fn a_retry_tries_the_bases_again_and_what_failed_for_its_sake(store: &mut dyn Store) {
    let of_base = |title: &str, base: Option<&str>| Ask { base_filename: base.map(name), ..ask(title) };
    let fail_all = |store: &mut dyn Store| {
        for (title, base, reason) in [
            ("base", None, Failure::ExitNonzero),
            ("middle", Some("base"), Failure::BaseFailed),
            ("end", Some("middle"), Failure::BaseFailed),
            ("own", Some("middle"), Failure::TimedOut),
        ] {
            store.request(&of_base(title, base), at(0)).unwrap();
            let job = start(store, &format!("token of {title}"), at(1));
            fail(store, &job, reason, false, at(2));
        }
    };
    let queued = |store: &dyn Store| -> Vec<String> {
        let jobs = store.list(&Filter { state: Some(State::Queued), ..Filter::default() }).unwrap();
        jobs.into_iter().map(|job| job.key.title).collect()
    };
    fail_all(store);
    let rank = find(store, "base").rank;
    assert!(matches!(store.request(&of_base("end", Some("middle")), at(9)).unwrap(), Requested::Failing(_)));
    assert_eq!(queued(store), [""; 0], "a request without the wish tries nothing again");
    store.request(&Ask { retry: true, ..of_base("end", Some("middle")) }, at(9)).unwrap();
    assert_eq!(queued(store), ["base", "middle", "end"]);
    let base = find(store, "base");
    assert_eq!((base.rank, base.submitted_at, base.attempts), (rank, at(9), 0));
    for title in ["base", "middle", "end"] {
        store.cancel(&name(title), None, true, at(9)).unwrap();
    }
    store.dismiss(&name("own")).unwrap();
    fail_all(store);
    store.request(&Ask { retry: true, ..of_base("base", None) }, at(9)).unwrap();
    assert_eq!(queued(store), ["middle", "end", "base"], "what failed by itself stays failed");
}

fn listeners(ready: &[&str], failed: &[&str]) -> Listeners {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Listeners { ready: names(ready), failed: names(failed) }
}

/// Who is to be told of which title, and how it ended.
fn told(store: &dyn Store) -> Vec<(String, String, Outcome, Option<Failure>)> {
    let told = |of: Delivery| (of.listener, of.key.title, of.outcome, of.reason);
    store.deliveries().unwrap().into_iter().map(told).collect()
}

fn each_end_of_a_job_is_told_to_those_who_listen_for_it(store: &mut dyn Store) {
    publish(store, "before", at(0));
    store.tell(listeners(&["web"], &["web", "ops"]));
    put(store, &Ask { meta: Some("[1]".into()), ..of_client("A", "me") }, at(1));
    let job = start(store, "a", at(2));
    store.finish(&published(&job, at(3)), "node").unwrap();
    failed(store, "B", Failure::TimedOut, false);
    put(store, &Ask { wait_until: Some(at(10)), ..ask("C") }, at(4));
    put(store, &Ask { wait_until: Some(at(11)), ..ask("D") }, at(4));
    assert_eq!(store.claim(&claim("none"), at(10)).unwrap().map(|job| job.key.title).as_deref(), Some("D"));
    let end = |listener: &str, title: &str, outcome, reason| (listener.into(), title.into(), outcome, reason);
    let mut expected = vec![end("web", "A", Outcome::Ready, None)];
    for (title, reason) in [("B", Failure::TimedOut), ("C", Failure::WaitExpired)] {
        let outcome = Outcome::from(reason.state());
        expected.extend(["web", "ops"].map(|listener| end(listener, title, outcome, Some(reason))));
    }
    assert_eq!(told(store), expected);
    let first = store.deliveries().unwrap().remove(0);
    assert_eq!((first.job_id, first.key, first.filename), (job.id, job.key, job.filename));
    assert_eq!((first.client.as_deref(), first.meta.as_deref(), first.attempts), (Some("me"), Some("[1]"), 1));
    assert_eq!((first.happened_at, first.since, first.due_at, first.tries), (at(3), at(3), Some(at(3)), 0));
}

fn a_run_that_does_not_end_its_job_is_not_told(store: &mut dyn Store) {
    store.tell(listeners(&["web"], &["web"]));
    put(store, &ask("A"), at(0));
    let job = start(store, "t", at(1));
    let run = Run { reason: Some(Failure::ExitNonzero), ..job.run(Outcome::Retried, at(2)) };
    store.requeue("t", Again::Retry(at(2)), Some((&run, "node"))).unwrap();
    assert_eq!(store.finish(&published(&job, at(3)), "node").unwrap(), Settled::Lost);
    let note = FailureNote { reason: Failure::ExitNonzero, detail: "", keeps_token: false };
    assert!(!store.fail(&run, "node", &note).unwrap());
    assert_eq!(told(store), []);
}

fn a_delivery_stays_until_it_is_made_or_given_up(store: &mut dyn Store) {
    store.tell(listeners(&["web", "ops"], &[]));
    for (title, time) in [("B", 1), ("A", 0)] {
        publish(store, title, at(time));
    }
    let (web, both) = (["web".to_owned()], ["ops".to_owned(), "web".to_owned()]);
    let next = |store: &dyn Store, who: &[String], secs| {
        let next = store.next_delivery(who, at(secs)).unwrap();
        next.map(|next| (next.id, format!("{} {}", next.listener, next.key.title)))
    };
    assert_eq!(next(store, &[], 9), None);
    assert_eq!(next(store, &web, -1), None, "a clock that was set back a little waits");
    let (id, first) = next(store, &both, 9).expect("a delivery");
    assert_eq!(first, "web A");
    store.undelivered(id, "exit 1", Some(at(60))).unwrap();
    assert_eq!(next(store, &web, 9).unwrap().1, "web B");
    store.delivered(next(store, &web, 9).unwrap().0).unwrap();
    assert_eq!(next(store, &web, 59), None);
    assert_eq!(next(store, &web, 60).unwrap().0, id);
    assert_eq!(next(store, &web, -3 * 86_400).unwrap().0, id, "beyond the horizon");
    store.undelivered(id, "exit 2", None).unwrap();
    assert_eq!(next(store, &web, 9999), None);
    let of = |store: &dyn Store| store.deliveries().unwrap().into_iter().find(|of| of.id == id).expect("it is visible");
    assert_eq!((of(store).due_at, of(store).tries, of(store).error.as_deref()), (None, 2, Some("exit 2")));
    assert!(store.retry_delivery(id, at(100)).unwrap());
    assert_eq!((of(store).due_at, of(store).tries, of(store).since), (Some(at(100)), 0, at(100)));
    assert!(!store.retry_delivery(9999, at(100)).unwrap());
}

fn what_was_not_told_is_left_to_another(store: &mut dyn Store) {
    store.tell(listeners(&["web"], &[]));
    publish(store, "A", at(0));
    let web = ["web".to_owned()];
    let take = |store: &mut dyn Store, secs| store.take_delivery(&web, at(secs), LIMIT).unwrap().map(|of| of.id);
    let id = take(store, 1).expect("a delivery");
    store.leave_delivery(id, at(2)).unwrap();
    assert_eq!(take(store, 2), Some(id));
    assert_eq!(take(store, 63), Some(id), "whoever had it has told nobody within its time");
}

fn old_deliveries_are_forgotten(store: &mut dyn Store) {
    store.tell(listeners(&["web"], &[]));
    for secs in 0..4 {
        publish(store, &format!("{secs}"), at(secs));
    }
    for delivery in store.deliveries().unwrap().iter().skip(1) {
        store.undelivered(delivery.id, "no", None).unwrap();
    }
    assert_eq!(store.forget_deliveries(at(0), 2).unwrap(), 1);
    let left: Vec<String> = told(store).into_iter().map(|(_, title, _, _)| title).collect();
    assert_eq!(left, ["0", "2", "3"], "one that is still tried does not count");
    assert_eq!(store.forget_deliveries(at(3), 2).unwrap(), 2);
}

#[test]
fn a_queue_of_the_first_schema_is_brought_up_with_all_its_rows() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("queue.db");
    let conn = rusqlite::Connection::open(&path).expect("a database");
    conn.execute_batch(include_str!("../sql/sqlite/migrations/0001_first.sql")).expect("the first schema");
    conn.execute_batch(include_str!("fixtures/0001_rows.sql")).expect("its rows");
    drop(conn);
    let copy = dir.path().join("copy.db");
    std::fs::copy(&path, &copy).expect("a copy");
    drop(Sqlite::open_to_move(&copy).expect("a queue that moves"));
    assert_eq!(Sqlite::schema(&copy).unwrap(), Some((NEWEST, None)), "it moves in the shape of today");
    drop(Sqlite::open_to_read(&path).expect("a reader that may write brings it up to date"));
    let store = Sqlite::open(&path, "another id").expect("a queue");
    assert_eq!(store.queue_id().unwrap(), "the first id");
    let jobs = store.list(&Filter::default()).unwrap();
    let seen: Vec<_> = jobs.iter().map(|job| (job.key.title.as_str(), job.state())).collect();
    let expected =
        [("B", State::Started), ("A", State::Queued), ("C", State::FailedTimeout), ("D", State::FailedUnknown)];
    assert_eq!(seen, expected);
    assert_eq!(store.history(None, 9).unwrap().len(), 1);
    assert_eq!(store.recent_durations("epub", 9).unwrap(), [Duration::from_secs(7)]);
    assert_eq!(store.paused().unwrap(), ["default"]);
    drop(Sqlite::open_to_read(&path).expect("it is of this version now"));
}

fn many_requests_are_stored_all_or_none(store: &mut dyn Store) {
    failed(store, "F", Failure::ExitNonzero, false);
    put(store, &ask("old"), at(0));
    let asks = |bound, titles: &[&str]| -> Vec<Ask> {
        let bounds = QueueBounds { queued: bound, per_client: 0 };
        titles.iter().map(|title| Ask { bounds, ..ask(title) }).collect()
    };
    let refused = store.request_all(&asks(2, &["A", "old", "B"]), at(3)).unwrap();
    assert_eq!(refused, Batch::Refused { at: 2, bound: Bound::Queue });
    assert!(is_gone(store, "A"));
    let stored = store.request_all(&asks(3, &["A", "old", "B", "A", "F"]), at(3)).unwrap();
    assert_eq!(stored, Batch::Stored { queued: 2, joined: 2, failing: 1 });
    assert_eq!((find(store, "A").state(), find(store, "B").state()), (State::Queued, State::Queued));
    let asks: Vec<Ask> = ["C", "D"]
        .into_iter()
        .map(|title| Ask { bounds: QueueBounds { queued: 0, per_client: 1 }, ..of_client(title, "c") })
        .collect();
    let refused = store.request_all(&asks, at(3)).unwrap();
    assert_eq!(refused, Batch::Refused { at: 1, bound: Bound::Client });
}

/// Some of everything that a line may say, in an order that says nothing; the same for each `prefix`.
fn lines(prefix: &str) -> Vec<Ask> {
    let bounds = QueueBounds { queued: 300, per_client: 90 };
    let line = |n: i64| {
        let dice = |sides: i64, salt: i64| (n * 7919 + salt * 104_729) % 1009 % sides;
        let title = format!("{prefix} {}", dice(60, 1));
        Ask {
            client: (dice(4, 2) > 0).then(|| format!("{prefix} c{}", dice(3, 3))),
            priority: 5 + dice(11, 4),
            refresh: dice(5, 5) == 0,
            retry: dice(9, 6) == 0,
            not_before: (dice(3, 7) == 0).then(|| at(100 + dice(50, 8))),
            wait_until: (dice(2, 9) == 0).then(|| at(1000 + dice(500, 10))),
            meta: (dice(2, 11) == 0).then(|| n.to_string()),
            pages: u32::try_from(dice(500, 12)).ok(),
            bounds,
            ..ask(&title)
        }
    };
    (0..400).map(line).collect()
}

fn a_batch_comes_to_what_its_lines_come_to_alone(store: &mut dyn Store) {
    for prefix in ["alone", "batch"] {
        for n in [3, 17, 40] {
            failed(store, &format!("{prefix} {n}"), Failure::ExitNonzero, false);
        }
        failed(store, &format!("{prefix} 50"), Failure::WouldNotDie, true);
    }
    let mut alone = (0, 0, 0);
    for ask in lines("alone") {
        match store.request(&ask, at(10)).unwrap() {
            Requested::Queued(_) => alone.0 += 1,
            Requested::Joined(_) => alone.1 += 1,
            Requested::Failing(_) => alone.2 += 1,
            refused => panic!("{refused:?}"),
        }
    }
    let mut counted = (0, 0, 0);
    for asks in lines("batch").chunks(150) {
        let Batch::Stored { queued, joined, failing } = store.request_all(asks, at(10)).unwrap() else {
            panic!("refused")
        };
        counted = (counted.0 + queued, counted.1 + joined, counted.2 + failing);
    }
    assert_eq!(counted, alone);
    assert!(alone.0 > 50 && alone.1 > 200 && alone.2 > 0, "{alone:?}");
    let rows = |prefix: &str| {
        let mut jobs = store.list(&Filter::default()).unwrap();
        jobs.retain(|job| job.key.title.starts_with(prefix));
        jobs.sort_by_key(|job| job.key.title.clone());
        let shown = jobs.into_iter().map(|job| {
            let job = Job { id: 0, last_run: None, ..job };
            format!("{job:?}").replace(prefix, "")
        });
        shown.collect::<Vec<_>>()
    };
    let (alone, batch) = (rows("alone"), rows("batch"));
    assert_eq!(alone.len(), batch.len());
    for (alone, batch) in alone.iter().zip(&batch) {
        assert_eq!(alone, batch);
    }
}

/// Exit code and words of what was refused.
fn refusal<T>(result: anyhow::Result<T>) -> (Exit, String) {
    let error = result.map(drop).expect_err("it is refused");
    (exit_of(&error), error.to_string())
}

#[test]
fn whoever_has_a_queue_open_that_closes_is_told_to_come_later() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("queue.db");
    std::fs::write(&path, "").expect("an empty file");
    let mut open = Sqlite::open(&path, "the id").expect("a queue");
    let mark = Mark { stage: Stage::Leaving, id: "7f".into(), other: "elsewhere".into() };
    let mut mover = Sqlite::open_to_move(&path).expect("a queue that moves");
    assert_eq!(mover.close(&mark).unwrap(), 0);
    let (exit, words) = refusal(open.request(&ask("A"), at(0)));
    assert_eq!(exit, Exit::TryLater);
    assert!(words.contains("the queue moves to another database"), "{words}");
    assert!(mover.open_again(&mark, &mark.at(Stage::Here)).unwrap());
    put(&mut open, &ask("A"), at(1));
}

#[test]
fn a_queue_arrives_in_no_database_that_holds_anything() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("queue.db");
    std::fs::write(&path, "").expect("an empty file");
    let mover = Sqlite::open_to_move(&path).expect("an empty file");
    mover.refuse_occupied("another id").expect("an empty file holds nothing");
    let mut store = Sqlite::open(&path, "the id").expect("a queue");
    for id in ["the id", "another id"] {
        mover.refuse_occupied(id).expect("nor does a queue without jobs");
    }
    put(&mut store, &ask("A"), at(0));
    for id in ["the id", "another id"] {
        let (exit, words) = refusal(mover.refuse_occupied(id));
        assert!(exit == Exit::Config && words.contains("jobs or history of its own"), "{words}");
    }
}

#[test]
fn a_writer_is_seen_by_whoever_would_wait_for_him() {
    let (mut store, dir) = fresh_sqlite();
    assert!(!store.is_being_written().unwrap());
    let dir = dir.expect("its directory");
    let mut writer = rusqlite::Connection::open(dir.path().join("queue.db")).expect("another connection");
    let writes = writer.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("its turn");
    assert!(store.is_being_written().unwrap());
    drop(writes);
    assert!(!store.is_being_written().unwrap(), "and nothing is held");
}

#[test]
fn a_link_in_the_place_of_the_database_is_not_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (precious, path) = (dir.path().join("precious"), dir.path().join("queue.db"));
    std::fs::write(&precious, "").expect("a file");
    std::os::unix::fs::symlink(&precious, &path).expect("a link");
    refusal(Sqlite::open(&path, "the id"));
    assert_eq!(std::fs::metadata(&precious).expect("the file").len(), 0);
}

#[test]
fn a_queue_of_one_machine_knows_of_no_other() {
    let (mut store, _dir) = fresh_sqlite();
    put(&mut *store, &ask("A"), at(0));
    start(&mut *store, "t", at(1));
    assert!(store.lost("another", 0, 9).unwrap().is_empty());
    assert!(store.nodes().unwrap().is_empty());
    assert!(!store.has_cache().unwrap());
    assert_eq!(store.time().unwrap(), None);
}

#[cfg(feature = "postgres")]
#[test]
fn a_queue_of_many_machines_tells_whose_runs_are_lost() {
    let (mut store, _dir) = fresh_postgres();
    let runs = [("A", "one", LIMIT), ("B", "two", Duration::ZERO), ("C", "two", Duration::ZERO)].map(
        |(title, node, lease)| {
            put(&mut *store, &ask(title), at(0));
            store.claim(&Claim { node: node.into(), lease, ..claim(title) }, at(1)).unwrap().expect("it is due")
        },
    );
    let titles = |jobs: Vec<Job>| jobs.into_iter().map(|job| job.key.title).collect::<Vec<_>>();
    let on = |node| {
        let mut titles = titles(store.started_on(node).unwrap());
        titles.sort();
        titles
    };
    assert_eq!((on("one"), on("two"), on("three").len()), (vec!["A".into()], vec!["B".into(), "C".into()], 0));
    let lost = |node, after, limit| titles(store.lost(node, after, limit).unwrap());
    assert_eq!(lost("one", 0, 9), ["B", "C"]);
    assert_eq!((lost("one", 0, 1), lost("one", runs[1].id, 9)), (vec!["B".into()], vec!["C".into()]));
    assert!(lost("two", 0, 9).is_empty(), "whoever looks knows of its own");
    let time = store.time().unwrap().expect("its own clock").timestamp();
    let off = time.abs_diff(crate::harness::since_epoch().as_secs().cast_signed());
    assert!(off < 60, "{off} s");
}

#[test]
fn each_illegal_shape_of_a_row_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("queue.db");
    std::fs::write(&path, "").expect("an empty file");
    let mut store = Sqlite::open(&path, "id").expect("a queue");
    failed(&mut store, "failed", Failure::ExitNonzero, false);
    failed(&mut store, "late", Failure::TimedOut, false);
    put(&mut store, &ask("started"), at(0));
    start(&mut store, "t", at(1));
    put(&mut store, &ask("queued"), at(0));
    publish(&mut store, "run", at(-9));
    let conn = rusqlite::Connection::open(&path).expect("the database opens");
    let illegal = [
        "UPDATE jobs SET state = 4 WHERE title = 'queued'",
        "UPDATE jobs SET state = -1 WHERE title = 'queued'",
        "UPDATE jobs SET state = 1 WHERE title = 'queued'",
        "UPDATE jobs SET state = 2 WHERE title = 'queued'",
        "UPDATE jobs SET state = 3 WHERE title = 'queued'",
        "UPDATE jobs SET token = 'x' WHERE title = 'queued'",
        "UPDATE jobs SET slot = 'x' WHERE title = 'queued'",
        "UPDATE jobs SET started_at = 1 WHERE title = 'queued'",
        "UPDATE jobs SET finished_at = 1 WHERE title = 'queued'",
        "UPDATE jobs SET reason = 'timed_out' WHERE title = 'queued'",
        "UPDATE jobs SET cancel_at = 1 WHERE title = 'queued'",
        "UPDATE jobs SET due_at = 1 WHERE title = 'queued'",
        "UPDATE jobs SET waits_for = 'not_before' WHERE title = 'queued'",
        "UPDATE jobs SET waits_for = 'tea', due_at = 1 WHERE title = 'queued'",
        "UPDATE jobs SET title = '' WHERE title = 'queued'",
        "UPDATE jobs SET options = '{' WHERE title = 'queued'",
        "UPDATE jobs SET priority = -1 WHERE title = 'queued'",
        "UPDATE jobs SET priority = 1001 WHERE title = 'queued'",
        "UPDATE jobs SET rank = NULL WHERE title = 'queued'",
        "UPDATE jobs SET rank = 'first' WHERE title = 'queued'",
        "UPDATE jobs SET filename = 'started.epub' WHERE title = 'queued'",
        "UPDATE jobs SET attempts = -1 WHERE title = 'queued'",
        "UPDATE jobs SET retries = -1 WHERE title = 'queued'",
        "UPDATE jobs SET interruptions = -1 WHERE title = 'queued'",
        "UPDATE jobs SET stops = -1 WHERE title = 'queued'",
        "UPDATE jobs SET base_waits = -1 WHERE title = 'queued'",
        "UPDATE jobs SET state = 0 WHERE title = 'started'",
        "UPDATE jobs SET state = 3, reason = 'exit_nonzero', detail = '', finished_at = 1 WHERE title = 'started'",
        "UPDATE jobs SET token = NULL WHERE title = 'started'",
        "UPDATE jobs SET node = NULL WHERE title = 'started'",
        "UPDATE jobs SET slot = NULL WHERE title = 'started'",
        "UPDATE jobs SET worker = NULL WHERE title = 'started'",
        "UPDATE jobs SET started_at = NULL WHERE title = 'started'",
        "UPDATE jobs SET deadline_at = NULL WHERE title = 'started'",
        "UPDATE jobs SET finished_at = 1 WHERE title = 'started'",
        "UPDATE jobs SET reason = 'timed_out' WHERE title = 'started'",
        "UPDATE jobs SET attempts = 0 WHERE title = 'started'",
        "UPDATE jobs SET due_at = 1, waits_for = 'backing_off' WHERE title = 'started'",
        "UPDATE jobs SET state = 0 WHERE title = 'failed'",
        "UPDATE jobs SET state = 1 WHERE title = 'failed'",
        "UPDATE jobs SET state = 2 WHERE title = 'failed'",
        "UPDATE jobs SET state = 3 WHERE title = 'late'",
        "UPDATE jobs SET token = 'x' WHERE title = 'failed'",
        "UPDATE jobs SET finished_at = NULL WHERE title = 'failed'",
        "UPDATE jobs SET reason = NULL WHERE title = 'failed'",
        "UPDATE jobs SET detail = NULL WHERE title = 'failed'",
        "UPDATE jobs SET cancel_at = 1 WHERE title = 'failed'",
        "UPDATE jobs SET reason = 'would_not_die' WHERE title = 'failed'",
        "UPDATE jobs SET reason = 'exit_nonzero' WHERE title = 'late'",
        "UPDATE runs SET outcome = 'done' WHERE title = 'run'",
        "UPDATE runs SET present = 2 WHERE title = 'run'",
        "UPDATE runs SET published_at = NULL WHERE title = 'run'",
        "UPDATE runs SET present = 1, published_at = 1, filename = 'run.epub' WHERE title = 'failed'",
    ];
    for sql in illegal {
        let refused = conn.execute(sql, []).expect_err(sql).sqlite_error_code();
        assert!(
            matches!(refused, Some(rusqlite::ErrorCode::ConstraintViolation | rusqlite::ErrorCode::TypeMismatch)),
            "{sql}: {refused:?}"
        );
    }
    let legal = "UPDATE jobs SET token = 'x', reason = 'would_not_die' WHERE title = 'late'";
    assert_eq!(conn.execute(legal, []).expect("the statements do reach their rows"), 1);
}
