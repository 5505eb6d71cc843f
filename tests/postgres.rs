//! The queue on PostgreSQL, through the built program and a real server.

use std::fs;
use std::time::Duration;

use crate::harness::server::{self, Server, TLS_NAME};
use crate::harness::{Queue, eventually, now, text};

#[test]
fn a_title_goes_from_request_to_ready() {
    let queue = Queue::on(server::shared(), "");
    assert_eq!(queue.status("ok", "A Book")["state"], "absent");
    let asked = queue.request("ok", "A Book");
    assert_eq!((text(&asked["state"]), asked["position"].as_u64()), ("queued".to_owned(), Some(1)));
    queue.dispatch().code(0).silent();
    let ready = queue.status("ok", "A Book");
    assert_eq!(ready["state"], "ready");
    assert!(fs::metadata(text(&ready["path"])).is_ok_and(|meta| meta.len() > 0));
    assert!(!queue.path("state/queue.db").exists(), "nothing is kept in SQLite");
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(queue.sql("SELECT outcome FROM runs"), ["ready"]);
    queue.run(["check"]).code(0);
    queue.assert_quiet();
}

#[test]
fn failures_bases_and_pauses_are_as_on_sqlite() {
    let queue = Queue::on(server::shared(), "");
    queue.request("code1", "Broken");
    queue.dispatch().code(0);
    let failed = queue.status("code1", "Broken");
    assert_eq!((text(&failed["state"]), text(&failed["reason"])), ("failed_unknown".into(), "exit_nonzero".into()));
    queue.run(["pause", "--message", "back at noon"]).code(0);
    let waiting = queue.request("ok", "Later");
    assert_eq!((text(&waiting["reason"]), text(&waiting["message"])), ("paused".into(), "back at noon".into()));
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Later"), "queued");
    queue.run(["resume"]).code(0);
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Later"), "ready");
    queue.run(["cancel", "--format", "ok", "Never asked for"]).code(6);
    queue.assert_quiet();
}

#[test]
fn a_database_that_is_away_means_later_and_a_ready_file_is_served() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    queue.request("ok", "Ready");
    queue.dispatch().code(0);
    server.down();
    assert_later_and_ready(&queue);
    server.up();
    queue.request("ok", "Other");
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Other"), "ready");
    // Stopped, it accepts connections and answers nobody.
    let pid = server.pid();
    crate::harness::kill(pid, "STOP");
    assert_later_and_ready(&queue);
    crate::harness::kill(pid, "CONT");
    eventually("it answers again", || (queue.run(["status", "Nothing"]).code == 6).then_some(()));
}

fn assert_later_and_ready(queue: &Queue) {
    assert_eq!(queue.state("ok", "Ready"), "ready");
    assert_eq!(queue.request("ok", "Ready")["state"], "ready");
    for verb in ["request", "status"] {
        let begun = now();
        let said = queue.run(["--json", verb, "--format", "ok", "Not ready"]).code(75);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{verb} took {took:?}");
        assert_eq!(said.json()["error"]["code"], 75);
        assert!(!said.out.contains("host="), "{}", said.out);
    }
}

#[test]
fn ten_first_starts_at_once_make_one_schema() {
    let server = server::shared();
    let first = Queue::on(server, "");
    let starts: Vec<_> = (0..10).map(|n| first.spawn(["request", &format!("Book {n}"), "--format", "ok"])).collect();
    for start in starts {
        start.wait().code(3);
    }
    assert_eq!(first.sql("SELECT count(*) FROM jobs"), ["10"]);
    first.dispatch().code(0);
    assert_eq!(first.published().len(), 10);
}

#[test]
fn what_the_server_refuses_is_said_with_its_mend() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    queue.request("ok", "A");
    queue.sql("CREATE ROLE guest LOGIN");
    let said_of = |change: (&str, &str), code: i32, words: &str| {
        queue.reconfigure(change.0, change.1);
        for verb in ["request", "status"] {
            let said = queue.run([verb, "--format", "ok", "A"]).code(code);
            assert!(said.err.contains(words), "{verb}: {said:?}");
        }
        queue.reconfigure(change.1, change.0);
    };
    let (own, guests) = ("postgres://queue@", "postgres://guest@");
    said_of((own, guests), 77, "the owner must GRANT USAGE");
    queue.sql("GRANT USAGE ON SCHEMA export_queue TO guest");
    said_of((own, guests), 77, "this database user lacks a right");
    queue.sql("ALTER ROLE guest CONNECTION LIMIT 0");
    said_of((own, guests), 75, "the database is busy or away; try again later");
    queue.sql("CREATE ROLE keyed LOGIN PASSWORD 'key'");
    demand_password(&queue, server, "keyed");
    said_of((own, "postgres://keyed@"), 78, "see the password and channel_binding in `database`");
    said_of((own, "postgres://keyed:wrong@"), 78, "the database does not accept this user or password");
    said_of((own, "postgres://keyed:key@"), 77, "the owner must GRANT USAGE");
    said_of((own, "postgres://nobody@"), 78, "the database does not accept this user or password");
    said_of(("/fresh_", "/nowhere_"), 78, "there is no such database");
    // Not as long as `request` may take, but until it has looked: a program that was in the middle when the queue was closed.
    queue.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'the queue moves' USING ERRCODE = 'EQ001'; END $$",
    );
    queue.sql("CREATE TRIGGER moves BEFORE INSERT ON jobs EXECUTE FUNCTION refuse()");
    let said = queue.run(["request", "--format", "ok", "B"]).code(75);
    assert!(said.err.contains("the queue moves to another database, or has moved"), "{said:?}");
    queue.sql("DROP TRIGGER moves ON jobs");
    queue.request("ok", "B");
    queue.sql("ALTER TABLE jobs RENAME TO gone");
    said_of(("x", "x"), 78, "it holds no queue: run `export-queue init`");
}

/// Lets a user in, who may not use the queue, with a password only.
fn demand_password(queue: &Queue, server: &Server, user: &str) {
    let doors = server.dir().join("data/pg_hba.conf");
    let rules = fs::read_to_string(&doors).expect("the server's doors");
    fs::write(&doors, format!("local all {user} scram-sha-256\n{rules}")).expect("a further rule");
    server.sql("postgres", "SELECT pg_reload_conf()");
    let (own, theirs) = ("postgres://queue@", format!("postgres://{user}@"));
    queue.reconfigure(own, &theirs);
    eventually("the rule counts", || (queue.run(["status", "A"]).code != 77).then_some(()));
    queue.reconfigure(&theirs, own);
}

#[test]
fn a_schema_that_is_too_new_is_left_alone_and_one_that_allows_us_is_used() {
    let queue = Queue::on(server::shared(), "");
    queue.request("ok", "A");
    queue.sql("UPDATE meta SET value = '99' WHERE name = 'schema'");
    assert_eq!(queue.request("ok", "B")["state"], "queued", "this version may still write");
    queue.sql("UPDATE meta SET value = '99' WHERE name = 'oldest_writer'");
    for verb in [&["request", "--format", "ok", "C"][..], &["status", "--format", "ok", "C"], &["dispatch"]] {
        let said = queue.run(verb).code(78);
        assert!(said.err.contains("schema 99") && said.err.contains("newer export-queue"), "{said:?}");
    }
    assert_eq!(queue.sql("SELECT title FROM jobs ORDER BY id"), ["A", "B"]);
    // That of the newest that we know may always be written by us, whatever it says of older ones.
    let known = Queue::on(server::shared(), "");
    known.request("ok", "A");
    known.sql("UPDATE meta SET value = '99' WHERE name = 'oldest_writer'");
    assert_eq!(known.request("ok", "B")["state"], "queued");
}

#[test]
fn tls_is_as_strict_as_sslmode_says() {
    let (server, certificates) = Server::with_tls();
    let database = server.fresh_database();
    let (known, unknown) = (certificates.authority.display(), certificates.stranger.display());
    let mut queue = Queue::on(server, "");
    let config = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
    let (_, rest) = config.split_once('\n').expect("a first line");
    queue.run(["init"]).code(0);
    queue.is_on(server, &server.url(&database));
    fs::remove_file(queue.path("state/queue.id")).expect("it belongs to the first database");
    fs::remove_dir_all(queue.path("cache")).expect("and so does the cache");
    let ask = |host: &str, parameters: &str, roots: Option<String>| {
        let url = format!("postgres://queue@{host}/{database}?hostaddr={}&{parameters}", certificates.address);
        queue.configure(&format!("database = \"{url}\"\n{rest}"));
        let mut command = queue.command(["request", "--format", "ok", "A Book"]);
        command.envs(roots.map(|roots| ("PGSSLROOTCERT", roots)));
        crate::harness::call(&mut command)
    };
    for (host, parameters) in [
        (TLS_NAME, format!("sslmode=verify-full&sslrootcert={known}")),
        ("other.example.org", format!("sslmode=verify-ca&sslrootcert={known}")),
        ("other.example.org", "sslmode=require".to_owned()),
        ("other.example.org", "sslmode=prefer".to_owned()),
    ] {
        ask(host, &parameters, None).code(3);
    }
    ask(TLS_NAME, "sslmode=verify-full", Some(known.to_string())).code(3);
    // Who names a root wants it to be looked at, as with libpq.
    for (host, parameters) in [
        ("other.example.org", format!("sslmode=verify-full&sslrootcert={known}")),
        (TLS_NAME, format!("sslmode=verify-full&sslrootcert={unknown}")),
        (TLS_NAME, format!("sslmode=verify-ca&sslrootcert={unknown}")),
        (TLS_NAME, format!("sslmode=require&sslrootcert={unknown}")),
    ] {
        let refused = ask(host, &parameters, None).code(78);
        assert!(refused.err.contains("TLS does not work"), "{parameters}: {}", refused.err);
    }
    ask(TLS_NAME, "sslmode=verify-full", Some(unknown.to_string())).code(78);
    ask(TLS_NAME, "sslmode=verify-full&sslrootcert=/no/such/file", None).code(78);
    // The server lets nobody in without it.
    ask(TLS_NAME, "sslmode=disable", None).code(78);
    let log = server.log();
    assert!(log.contains("SSL enabled (protocol=TLSv1.3"), "{log}");
}
