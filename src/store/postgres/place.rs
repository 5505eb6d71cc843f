//! Where the database is and how to get in, as users of libpq expect: URL, service file, `PG…` variables, password file.
//!
//! What stands in the URL counts most, then the service, then the environment. Nothing here is ever printed but
//! [`Place::shown`], which holds no password.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls::{self, Trust};
use crate::exit::Refusal;

/// Where a server of this machine listens when nothing else is said.
const SOCKETS: &str = "/var/run/postgresql";

/// How long packets may stay unanswered before a connection counts as lost.
const UNANSWERED: Duration = Duration::from_secs(5);

/// Each parameter, and the variable that stands in for it.
const VARIABLES: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("dbname", "PGDATABASE"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("service", "PGSERVICE"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("application_name", "PGAPPNAME"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
];

/// Parameters that are ours to understand; the others are the client library's.
const OURS: &[&str] = &["sslmode", "sslrootcert", "sslcert", "sslkey", "passfile", "service"];

/// A database, and how to get in.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// What may be told to people.
    pub(super) shown: String,
}

/// The variables of the environment, and where the user's own files lie.
struct Surroundings<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Place {
    /// The place that a URL names.
    ///
    /// # Errors
    /// It is not to be understood, or a file that it names cannot be used (78).
    pub(super) fn of(url: &str) -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        resolve(url, &Surroundings { variable: &variable })
    }
}

fn resolve(url: &str, around: &Surroundings<'_>) -> Result<Place> {
    let refuse = |error: &dyn std::fmt::Display| Refusal::config(format!("`database`: {error}"));
    let (url, mut extra) = split(url);
    let mut config: Config = url.parse().map_err(|error| refuse(&described(&error)))?;
    let service = extra.get("service").cloned().or_else(|| around.get("PGSERVICE"));
    if let Some(service) = service {
        let settings = read_service(&service, around).map_err(|error| refuse(&format!("{error:#}")))?;
        fill(&mut config, &mut extra, settings)?;
    }
    let of_environment =
        VARIABLES.iter().filter_map(|(name, variable)| Some(((*name).to_owned(), around.get(variable)?)));
    fill(&mut config, &mut extra, of_environment)?;
    complete(&mut config, &extra, around);
    let trust = trust(&extra).map_err(|error| refuse(&error))?;
    config.ssl_mode(match extra.get("sslmode").map_or("prefer", String::as_str) {
        "disable" | "allow" => SslMode::Disable,
        "prefer" => SslMode::Prefer,
        _ => SslMode::Require,
    });
    let own = extra.get("sslcert").zip(extra.get("sslkey")).map(|(cert, key)| (Path::new(cert), Path::new(key)));
    let tls = tls::connector(&trust, own).map_err(|error| refuse(&format!("{error:#}")))?;
    let shown = shown(&config);
    Ok(Place { config, tls, shown })
}

impl Surroundings<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    fn home(&self, file: &str) -> Option<PathBuf> {
        self.get("HOME").map(|home| Path::new(&home).join(file))
    }
}

/// What the client library understands of a URL, and what is ours.
fn split(url: &str) -> (String, BTreeMap<String, String>) {
    let Some((base, parameters)) = url.split_once('?') else {
        return (url.to_owned(), BTreeMap::new());
    };
    let is_ours = |pair: &&str| OURS.contains(&pair.split('=').next().unwrap_or_default());
    let (ours, theirs): (Vec<&str>, Vec<&str>) = parameters.split('&').partition(is_ours);
    let read = |pair: &str| {
        pair.split_once('=')
            .map(|(name, value)| (name.to_owned(), percent_decode_str(value).decode_utf8_lossy().into_owned()))
    };
    let url = if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) };
    (url, ours.into_iter().filter_map(read).collect())
}

/// Adds settings whose parameter has not been set.
fn fill(
    config: &mut Config,
    extra: &mut BTreeMap<String, String>,
    settings: impl IntoIterator<Item = (String, String)>,
) -> Result<()> {
    let before = config.clone();
    for (name, value) in settings {
        let is_set = match name.as_str() {
            "host" => !before.get_hosts().is_empty(),
            "port" => !before.get_ports().is_empty(),
            "user" => before.get_user().is_some(),
            "dbname" => before.get_dbname().is_some(),
            "password" => before.get_password().is_some(),
            "application_name" => before.get_application_name().is_some(),
            "connect_timeout" => before.get_connect_timeout().is_some(),
            name if OURS.contains(&name) => {
                extra.entry(name.to_owned()).or_insert(value);
                continue;
            }
            _ => false,
        };
        if !is_set {
            set(config, &name, &value).map_err(|what| Refusal::config(format!("`database`: {what}")))?;
        }
    }
    Ok(())
}

fn set(config: &mut Config, name: &str, value: &str) -> Result<(), String> {
    match name {
        "host" => {
            for host in value.split(',') {
                config.host(host);
            }
        }
        "port" => {
            for port in value.split(',') {
                config.port(port.parse().map_err(|_| format!("{port} is no port"))?);
            }
        }
        "user" => {
            config.user(value);
        }
        "dbname" => {
            config.dbname(value);
        }
        "password" => {
            config.password(value);
        }
        "application_name" => {
            config.application_name(value);
        }
        "connect_timeout" => {
            let secs = value.parse().map_err(|_| format!("connect_timeout {value} is no number of seconds"))?;
            config.connect_timeout(Duration::from_secs(secs));
        }
        // What a service file or the environment says to other programs is not ours to refuse.
        _ => {}
    }
    Ok(())
}

/// What was not said anywhere.
fn complete(config: &mut Config, extra: &BTreeMap<String, String>, around: &Surroundings<'_>) {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host_path(SOCKETS);
    }
    if config.get_user().is_none() {
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
        config.user(user.map_or_else(|| "postgres".to_owned(), |user| user.name));
    }
    if config.get_dbname().is_none() {
        let user = config.get_user().unwrap_or_default().to_owned();
        config.dbname(user);
    }
    if config.get_application_name().is_none() {
        config.application_name("export-queue");
    }
    config.tcp_user_timeout(UNANSWERED).keepalives_idle(Duration::from_secs(10));
    config.keepalives_interval(UNANSWERED).keepalives_retries(3);
    if config.get_password().is_none()
        && let Some(password) = from_password_file(config, extra, around)
    {
        config.password(password);
    }
}

fn trust(extra: &BTreeMap<String, String>) -> Result<Trust, String> {
    let root = extra.get("sslrootcert").filter(|path| *path != "system").map(PathBuf::from);
    match extra.get("sslmode").map_or("prefer", String::as_str) {
        // As in libpq, who names a root certificate wants it to be looked at.
        "require" if root.is_some() => Ok(Trust::Chain(root)),
        "disable" | "allow" | "prefer" | "require" => Ok(Trust::Anybody),
        "verify-ca" => Ok(Trust::Chain(root)),
        "verify-full" => Ok(Trust::Name(root)),
        other => Err(format!("sslmode={other} is none of disable, allow, prefer, require, verify-ca, verify-full")),
    }
}

fn described(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn shown(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => config.get_hostaddrs().first().map_or_else(String::new, ToString::to_string),
    };
    format!("database {} on {host}", config.get_dbname().unwrap_or_default())
}

/// The settings of a service: of the user's own file, or of the system's.
fn read_service(name: &str, around: &Surroundings<'_>) -> Result<Vec<(String, String)>> {
    let own = around.get("PGSERVICEFILE").map(PathBuf::from).or_else(|| around.home(".pg_service.conf"));
    let directory = around.get("PGSYSCONFDIR").unwrap_or_else(|| "/etc/postgresql-common".to_owned());
    for path in own.into_iter().chain([Path::new(&directory).join("pg_service.conf")]) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        if let Some(settings) = section(&text, name) {
            return Ok(settings);
        }
    }
    anyhow::bail!("there is no service {name} in .pg_service.conf or {directory}/pg_service.conf")
}

fn section(text: &str, name: &str) -> Option<Vec<(String, String)>> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) == Some(name))?;
    let of_section = lines.take_while(|line| !line.starts_with('['));
    let pairs = of_section.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    Some(pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect())
}

/// The password of the first line that fits; a file that others may read is not used, as in libpq.
fn from_password_file(config: &Config, extra: &BTreeMap<String, String>, around: &Surroundings<'_>) -> Option<String> {
    let path = extra.get("passfile").map(PathBuf::from).or_else(|| around.home(".pgpass"))?;
    let meta = fs::metadata(&path).ok()?;
    if meta.mode() & 0o077 != 0 {
        tracing::warn!("{} may be read by others and is not used: chmod 600 it", path.display());
        return None;
    }
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display())).ok()?;
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let hosts = match config.get_hosts().first()? {
        Host::Tcp(host) => vec![host.clone()],
        Host::Unix(path) => vec!["localhost".to_owned(), path.display().to_string()],
    };
    let (database, user) = (config.get_dbname()?, config.get_user()?);
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [host, its_port, its_database, its_user, password] = fields.as_slice() else { return None };
        let fits = |field: &String, value: &str| field == "*" || field == value;
        let is_it = hosts.iter().any(|known| fits(host, known))
            && fits(its_port, &port)
            && fits(its_database, database)
            && fits(its_user, user);
        is_it.then(|| password.clone())
    })
}

/// The fields of a line of a password file: parted by `:`, a backslash before it or another keeps it.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let last = fields.len() - 1;
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields[last].extend(characters.next()),
            other => fields[last].push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str, variables: &[(&str, &str)]) -> Result<Place> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        resolve(url, &Surroundings { variable: &variable })
    }

    fn write(dir: &Path, name: &str, text: &str, mode: u32) -> String {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        path.to_string_lossy().into_owned()
    }

    #[test]
    fn the_url_counts_most_then_the_service_then_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let text = "[other]\nuser=no\n[books]\n# a comment\nhost=of-service\nuser = of-service\nport=6000\n";
        let file = write(dir.path(), "services", text, 0o644);
        let variables =
            [("PGSERVICEFILE", file.as_str()), ("PGUSER", "of-env"), ("PGPASSWORD", "of-env"), ("PGHOST", "of-env")];
        let found = place("postgres://of-url@/exports?service=books", &variables).unwrap();
        assert_eq!(found.config.get_user(), Some("of-url"));
        assert_eq!(found.config.get_hosts(), [Host::Tcp("of-service".into())]);
        assert_eq!((found.config.get_ports(), found.config.get_password()), (&[6000][..], Some(&b"of-env"[..])));
        assert_eq!(found.shown, "database exports on of-service");
        assert_eq!(found.config.get_application_name(), Some("export-queue"));
        let error = place("postgres:///?service=none", &variables).map(drop).unwrap_err();
        assert!(error.to_string().starts_with("`database`: there is no service none in"), "{error}");
    }

    #[test]
    fn what_the_environment_says_counts_where_the_url_is_silent() {
        let variables = [
            ("PGUSER", "ann"),
            ("PGDATABASE", "books"),
            ("PGAPPNAME", "a wiki"),
            ("PGCONNECT_TIMEOUT", "7"),
            ("PGHOST", "one,two"),
            ("PGPORT", "6001,6002"),
        ];
        let of = |url: &str| {
            let config = place(url, &variables).unwrap().config;
            let name = config.get_application_name().map(str::to_owned);
            let (user, database) = (config.get_user().map(str::to_owned), config.get_dbname().map(str::to_owned));
            (
                user,
                database,
                name,
                config.get_connect_timeout().copied(),
                config.get_hosts().len(),
                config.get_ports().len(),
            )
        };
        let secs = Duration::from_secs;
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("postgres://"), (some("ann"), some("books"), some("a wiki"), Some(secs(7)), 2, 2));
        let url = "postgres://q@db:1/exports?application_name=me&connect_timeout=1";
        assert_eq!(of(url), (some("q"), some("exports"), some("me"), Some(secs(1)), 1, 1));
        let config = place("postgres://q:own@db/exports", &[("PGPASSWORD", "another")]).unwrap().config;
        assert_eq!(config.get_password(), Some(&b"own"[..]));
        let error = place("postgres://", &[("PGCONNECT_TIMEOUT", "soon")]).map(drop).unwrap_err();
        assert!(error.to_string().contains("connect_timeout soon is no number of seconds"), "{error}");
    }

    #[test]
    fn what_nobody_says_is_what_libpq_takes() {
        let found = place("postgres://", &[]).unwrap();
        assert_eq!(found.config.get_hosts(), [Host::Unix(SOCKETS.into())]);
        assert_eq!(found.config.get_dbname(), found.config.get_user());
        assert_eq!(found.config.get_ssl_mode(), SslMode::Prefer);
    }

    #[test]
    fn a_password_is_found_in_a_file_that_nobody_else_may_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = "# host:port:database:user:password\ndb:5432:other:q:no\ndb:*:*:q:se\\:cr\\\\et:x\n*:*:*:*:last\n";
        let file = write(dir.path(), "pass", text, 0o600);
        let with = |url: &str| place(url, &[("PGPASSFILE", &file)]).unwrap().config.get_password().map(<[u8]>::to_vec);
        assert_eq!(with("postgres://q@db/exports"), Some(b"se:cr\\et:x".to_vec()));
        assert_eq!(with("postgres://r@db/exports"), Some(b"last".to_vec()));
        assert_eq!(with("postgres://q:own@db/exports"), Some(b"own".to_vec()));
        write(dir.path(), "pass", text, 0o640);
        assert_eq!(with("postgres://q@db/exports"), None);
        let named = write(dir.path(), "named pass", "*:*:*:*:named", 0o600);
        let url = format!("postgres://q@db/exports?passfile={}", named.replace(' ', "%20"));
        assert_eq!(with(&url), Some(b"named".to_vec()));
    }

    #[test]
    fn what_nobody_names_is_looked_for_at_home() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ".pgpass", "*:*:*:ann:secret\n", 0o600);
        write(dir.path(), ".pg_service.conf", "[books]\nhost=of-home\nuser=ann\n", 0o644);
        write(dir.path(), "pg_service.conf", "[books]\nhost=no\n[system]\nhost=of-system\nuser=ann\n", 0o644);
        let around = dir.path().to_string_lossy();
        for (service, host) in [("books", "of-home"), ("system", "of-system")] {
            let variables = [("HOME", &*around), ("PGSYSCONFDIR", &around), ("PGSERVICE", service)];
            let config = place("postgres://", &variables).unwrap().config;
            assert_eq!(config.get_hosts(), [Host::Tcp(host.into())]);
            assert_eq!(config.get_password(), Some(&b"secret"[..]));
        }
    }

    #[test]
    fn modes_of_tls_are_those_of_libpq() {
        let mode = |url: &str| place(url, &[]).map(|found| found.config.get_ssl_mode());
        assert_eq!(mode("postgres://db/x?sslmode=disable").unwrap(), SslMode::Disable);
        assert_eq!(mode("postgres://db/x?sslmode=require").unwrap(), SslMode::Require);
        assert_eq!(mode("postgres://db/x?sslmode=verify-full&sslrootcert=system").unwrap(), SslMode::Require);
        let error = mode("postgres://db/x?sslmode=verify").unwrap_err();
        assert!(error.to_string().contains("sslmode=verify is none of disable"), "{error}");
        let error = mode("postgres://db/x?sslmode=verify-ca&sslrootcert=/nowhere.crt").unwrap_err();
        assert!(error.to_string().contains("/nowhere.crt"), "{error}");
        let error = mode("postgres://db/x?unheard=of").unwrap_err();
        assert!(error.to_string().contains("unheard"), "{error}");
    }
}
