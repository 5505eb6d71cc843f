//! Finding, reading and finishing the configuration.
//!
//! Promises the order of INTERFACE: the path that is named, else `$EXPORT_QUEUE_CONFIG`, else the user's file, else
//! `/etc`; never the current directory. A path that is named must exist. What comes out is validated, and relative
//! paths in it count from the directory of the file. Reads the environment only through its argument.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::Table;
use toml::de::DeTable;

use super::Config;
use super::overrides::{self, Override};
use super::place::{ConfigError, Places, line_place};
use super::validate::validate;

const SYSTEM_PATH: &str = "/etc/export-queue/config.toml";

/// A configuration and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration, validated.
    pub config: Config,
    /// The file that was read.
    pub path: Option<PathBuf>,
    /// What stood in it.
    pub text: String,
    pub(super) overrides: Vec<Override>,
}

/// Copies what of the environment of this process is for this program; what is not UTF-8 is replaced, a name that is not is
/// left out.
pub fn environment() -> BTreeMap<String, String> {
    let readable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        let name = name.into_string().ok()?;
        let is_ours = name.starts_with("EXPORT_QUEUE") || ["HOME", "XDG_CONFIG_HOME", "NO_COLOR"].contains(&&*name);
        is_ours.then(|| (name, value.to_string_lossy().into_owned()))
    };
    std::env::vars_os().filter_map(readable).collect()
}

/// Reads the configuration in force; fails when there is none or it is wrong.
pub fn load(explicit: Option<&Path>, env: &BTreeMap<String, String>) -> Result<Loaded, ConfigError> {
    if let Some((path, by)) = named_path(explicit, env) {
        return match read(&path)? {
            Some(text) => parse(&text, &path, env),
            None => Err(ConfigError::new(format!(
                "the configuration {} (named by {by}) does not exist: `export-queue init` writes one",
                path.display()
            ))),
        };
    }
    let places = usual_paths(env);
    for path in &places {
        if let Some(text) = read(path)? {
            return parse(&text, path, env);
        }
    }
    let looked_at: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    let looked_at = looked_at.join(", ");
    Err(ConfigError::new(format!("there is no configuration at {looked_at}: `export-queue init` writes one")))
}

/// Gives the path that is in force, whether or not a file is there yet.
pub fn path_in_force(explicit: Option<&Path>, env: &BTreeMap<String, String>, is_root: bool) -> PathBuf {
    if let Some((path, _)) = named_path(explicit, env) {
        return path;
    }
    let places = usual_paths(env);
    let existing = places.iter().find(|path| path.exists());
    let preferred = if is_root { places.last() } else { places.first() };
    existing.or(preferred).cloned().unwrap_or_else(|| PathBuf::from(SYSTEM_PATH))
}

/// Reads a configuration from text, as if it stood at `path`.
pub fn parse(text: &str, path: &Path, env: &BTreeMap<String, String>) -> Result<Loaded, ConfigError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if path.to_str().is_none() {
        let path = path.display();
        return Err(ConfigError::new(format!("the path of the configuration is not UTF-8: {path}")));
    }
    let overrides = overrides::collect(env)?;
    let source = Source { path: &path, text, overrides: &overrides };
    let alone: Config = toml::from_str(text).map_err(|error| source.blame(|places| places.read_error(&error)))?;
    let mut config = if overrides.is_empty() { alone } else { overrides::apply(&source.table()?, &overrides)? };
    finish(&mut config, &path);
    let faults = validate(&config);
    if !faults.is_empty() {
        return Err(source.blame(|places| places.error(&faults)));
    }
    Ok(Loaded { config, path: Some(path), text: text.to_owned(), overrides })
}

/// What is read, once more and with the place of everything in it where something has to be blamed.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    overrides: &'a [Override],
}

impl Source<'_> {
    fn table(&self) -> Result<Table, ConfigError> {
        toml::from_str(self.text).map_err(|error| self.syntax_error(&error))
    }

    fn blame(&self, words: impl FnOnce(&Places<'_>) -> ConfigError) -> ConfigError {
        let document = match DeTable::parse(self.text) {
            Ok(document) => document,
            Err(error) => return self.syntax_error(&error),
        };
        if let Err(error) = self.table() {
            return error;
        }
        let Self { path, text, overrides } = *self;
        words(&Places { path, text, document: document.get_ref(), overrides })
    }

    fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        let place = line_place(self.path, self.text, error.span().map_or(0, |span| span.start));
        ConfigError::new(format!("{}, {place}", error.message().replace('\n', " ")))
    }
}

fn named_path(explicit: Option<&Path>, env: &BTreeMap<String, String>) -> Option<(PathBuf, &'static str)> {
    if let Some(path) = explicit {
        return Some((path.to_owned(), "--config"));
    }
    variable(env, "EXPORT_QUEUE_CONFIG").map(|path| (PathBuf::from(path), "EXPORT_QUEUE_CONFIG"))
}

/// Lists the places of a configuration that nobody names: the user's, then the system's.
fn usual_paths(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let xdg = variable(env, "XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || variable(env, "HOME").map(|home| Path::new(home).join(".config")).filter(|path| path.is_absolute());
    let user = xdg.or_else(home).map(|directory| directory.join("export-queue/config.toml"));
    user.into_iter().chain([PathBuf::from(SYSTEM_PATH)]).collect()
}

fn variable<'a>(env: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    env.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

/// Reads a file; one that is not there is none.
fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(ConfigError::new(format!("cannot read the configuration {}: {error}", path.display()))),
    }
}

/// Adds what is always there and makes the paths absolute.
fn finish(config: &mut Config, path: &Path) {
    config.queue.entry("default".to_owned()).or_default();
    let directory = path.parent().unwrap_or(Path::new("/"));
    let formats = config.format.values_mut().filter_map(|format| format.env_file.as_mut());
    let secrets = config.notify.iter_mut().filter_map(|notify| notify.secret_file.as_mut());
    let own = [&mut config.state_dir, &mut config.cache.dir];
    for relative in own.into_iter().chain(formats).chain(secrets) {
        if !relative.as_os_str().is_empty() {
            *relative = directory.join(&*relative).components().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn with_env(text: &str, pairs: &[(&str, &str)]) -> Result<Config, String> {
        let loaded = parse(text, Path::new("/c/config.toml"), &env(pairs));
        loaded.map(|loaded| loaded.config).map_err(|error| error.message)
    }

    fn refused(text: &str) -> String {
        with_env(text, &[]).unwrap_err()
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line_and_the_nearest_right_one() {
        for (text, message) in [
            (
                "\n[queue.default]\nslotz = 2",
                "unknown key `slotz` in [queue.default], line 3 of /c/config.toml: did you mean `slots`?",
            ),
            ("statedir = \"/x\"", "unknown key `statedir`, line 1 of /c/config.toml: did you mean `state_dir`?"),
            ("[cahce]\ndir = \"/x\"", "unknown key `cahce`, line 1 of /c/config.toml: did you mean `cache`?"),
            (
                "[format.\"a.b\"]\ncomand = []",
                "unknown key `comand` in [format.\"a.b\"], line 2 of /c/config.toml: did you mean `command`?",
            ),
            (
                "[[notify]]\non = []\n[[notify]]\nurll = 1",
                "unknown key `urll` in [notify[1]], line 4 of /c/config.toml: did you mean `url`?",
            ),
            (
                "limits = { timout = 1 }",
                "unknown key `timout` in [limits], line 1 of /c/config.toml: did you mean `timeout`?",
            ),
            ("[node]\nxyzzy = 1", "unknown key `xyzzy` in [node], line 2 of /c/config.toml: known are lease"),
            ("[bypass]\nmax_pages = 3", "missing key `queue` in [bypass], line 1 of /c/config.toml"),
            ("[failures]\nhold = \"60s\"\n\nhold = 3", "duplicate key, line 4 of /c/config.toml"),
        ] {
            assert_eq!(refused(text), message);
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key_and_line() {
        for (text, message) in [
            (
                "[queue.default]\nslots = \"two\"",
                "`queue.default.slots`: invalid type: string \"two\", expected u32, line 2 of /c/config.toml",
            ),
            (
                "[queue.default]\nslots = -1",
                "`queue.default.slots`: invalid value: integer `-1`, expected u32, line 2 of /c/config.toml",
            ),
            (
                "[limits]\ntimeout = \"5M\"",
                "`limits.timeout`: \"5M\" is no duration: write `m` for minutes, and longer spans in days (`d`), line 2 of /c/config.toml",
            ),
            ("[limits]\n\nmax_memory = -1", "`limits.max_memory`: -1 is below zero, line 3 of /c/config.toml"),
            (
                "[cache]\nmode = 640",
                "`cache.mode`: a mode is written as text: \"0640\", not 640, line 2 of /c/config.toml",
            ),
            (
                "[cache]\nttl_from = \"x\"",
                "`cache.ttl_from`: unknown variant `x`, expected `published` or `accessed`, line 2 of /c/config.toml",
            ),
            ("[format.a.env]\nTOKEN = 123456", "`format.a.env.TOKEN` must be text, line 2 of /c/config.toml"),
        ] {
            assert_eq!(refused(text), message);
        }
    }

    #[test]
    fn bad_syntax_is_one_line_with_its_place() {
        for text in ["a", "[x", "a = \"", "a = 1\nb = = 2", "[a]\n[a]", "a = 99999999999999999999"] {
            let message = refused(text);
            assert!(!message.contains('\n') && message.contains(" of /c/config.toml"), "{message}");
        }
    }

    #[test]
    fn a_variable_overrides_one_value_of_the_file() {
        let file = "[limits]\ntimeout = \"5m\"\nnice = 3";
        let config = with_env(
            file,
            &[
                ("EXPORT_QUEUE__LIMITS__TIMEOUT", "10m"),
                ("EXPORT_QUEUE__STATE_DIR", "/s"),
                ("EXPORT_QUEUE__QUEUE__BIG__SLOTS", "3"),
                ("EXPORT_QUEUE__ALLOW__FONTS", "[\"default\", \"x\"]"),
                ("EXPORT_QUEUE__DATABASE", "postgres://q@db/x"),
                ("EXPORT_QUEUE__CACHE__MODE", "0600"),
                ("EXPORT_QUEUE__GROUP", "1000"),
                ("EXPORT_QUEUE__DEFAULTS__LANG", "nan"),
                ("EXPORT_QUEUE_CONFIG", "/x"),
                ("EXPORT_QUEUE_TITLE", "x"),
            ],
        )
        .unwrap();
        assert_eq!((config.limits.timeout.to_string().as_str(), config.limits.nice), ("10m", 3));
        assert_eq!((config.state_dir.as_path(), config.queue["big"].slots), (Path::new("/s"), 3));
        assert_eq!(config.database.as_deref(), Some("postgres://q@db/x"));
        assert_eq!((config.group.as_deref(), config.cache.mode.0), (Some("1000"), 0o600));
        assert_eq!(config.defaults.lang, "nan");
    }

    #[test]
    fn two_variables_may_need_each_other() {
        let both = [("EXPORT_QUEUE__BYPASS__MAX_PAGES", "3"), ("EXPORT_QUEUE__BYPASS__QUEUE", "default")];
        assert_eq!(with_env("", &both).unwrap().bypass.unwrap().max_pages, 3);
    }

    #[test]
    fn an_empty_variable_takes_a_value_away() {
        let config = with_env("database = \"postgres://x/y\"", &[("EXPORT_QUEUE__DATABASE", "")]).unwrap();
        assert_eq!(config.database, None);
    }

    #[test]
    fn a_wrong_variable_is_blamed_by_name() {
        for (name, value, message) in [
            (
                "EXPORT_QUEUE__LIMITS__TIMOUT",
                "5m",
                "environment variable EXPORT_QUEUE__LIMITS__TIMOUT: unknown key `timout` in [limits]: did you mean `timeout`?",
            ),
            (
                "EXPORT_QUEUE__LIMITS__NICE",
                "soft",
                "environment variable EXPORT_QUEUE__LIMITS__NICE: `limits.nice`: invalid type: string \"soft\", expected i32",
            ),
            (
                "EXPORT_QUEUE__STATE_DIR__X",
                "1",
                "environment variable EXPORT_QUEUE__STATE_DIR__X: `state_dir` is not a section",
            ),
            (
                "EXPORT_QUEUE__",
                "1",
                "environment variable EXPORT_QUEUE__: an override is named EXPORT_QUEUE__SECTION__KEY",
            ),
            (
                "EXPORT_QUEUE__QUEUE__DEFAULT__SLOTS",
                "5000",
                "`queue.default.slots` is 5000, it must be at most 1024, environment variable EXPORT_QUEUE__QUEUE__DEFAULT__SLOTS",
            ),
        ] {
            let fine = ("EXPORT_QUEUE__LIMITS__MAX_LOG", "1KB");
            assert_eq!(with_env("state_dir = \"/s\"", &[(name, value), fine]).unwrap_err(), message);
        }
    }

    #[test]
    fn relative_paths_count_from_the_directory_of_the_file() {
        let text = "state_dir = \"state\"\n[cache]\ndir = \"./cache\"\n[format.epub]\ncommand = [\"x\", \"{output}\"]\nenv_file = \"secrets\"";
        let config = with_env(text, &[]).unwrap();
        assert_eq!(
            (config.state_dir.as_path(), config.cache.dir.as_path()),
            (Path::new("/c/state"), Path::new("/c/cache"))
        );
        assert_eq!(config.format["epub"].env_file.as_deref(), Some(Path::new("/c/secrets")));
        let none = with_env(&text.replace("secrets", ""), &[]).unwrap();
        assert_eq!(none.format["epub"].env_file, None);
    }

    #[test]
    fn the_first_of_the_named_and_usual_places_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let write = |name: &str, slots: u32| {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), format!("[queue.default]\nslots = {slots}")).unwrap();
        };
        write("explicit.toml", 11);
        write("env.toml", 12);
        write("xdg/export-queue/config.toml", 13);
        write("home/.config/export-queue/config.toml", 14);
        let (by_env, xdg, home) = (at("env.toml"), at("xdg"), at("home"));
        let named = ("EXPORT_QUEUE_CONFIG", by_env.to_str().unwrap());
        let xdg = ("XDG_CONFIG_HOME", xdg.to_str().unwrap());
        let home = ("HOME", home.to_str().unwrap());
        let slots = |explicit: Option<&Path>, pairs: &[(&str, &str)]| {
            let loaded = load(explicit, &env(pairs)).unwrap();
            assert_eq!(loaded.path, Some(path_in_force(explicit, &env(pairs), true)));
            loaded.config.queue["default"].slots
        };
        assert_eq!(slots(Some(&at("explicit.toml")), &[named, xdg, home]), 11);
        assert_eq!(slots(None, &[named, xdg, home]), 12);
        assert_eq!(slots(None, &[xdg, home]), 13);
        assert_eq!(slots(None, &[("XDG_CONFIG_HOME", ""), home]), 14);
        assert_eq!(slots(None, &[("XDG_CONFIG_HOME", "relative"), home]), 14);
    }

    #[test]
    fn a_named_file_that_is_not_there_is_an_error_that_names_it() {
        let by_flag = load(Some(Path::new("/nowhere/c.toml")), &env(&[])).unwrap_err();
        assert_eq!(
            by_flag.message,
            "the configuration /nowhere/c.toml (named by --config) does not exist: `export-queue init` writes one"
        );
        let by_env = load(None, &env(&[("EXPORT_QUEUE_CONFIG", "/nowhere/c.toml")])).unwrap_err();
        assert!(by_env.message.contains("/nowhere/c.toml (named by EXPORT_QUEUE_CONFIG)"), "{by_env}");
    }

    #[test]
    fn init_writes_to_the_users_place_unless_root_runs_it() {
        let home = env(&[("HOME", "/nowhere")]);
        assert_eq!(path_in_force(None, &home, false), Path::new("/nowhere/.config/export-queue/config.toml"));
        assert_eq!(path_in_force(None, &home, true), Path::new(SYSTEM_PATH));
        assert_eq!(path_in_force(None, &env(&[]), false), Path::new(SYSTEM_PATH));
        assert_eq!(path_in_force(Some(Path::new("x.toml")), &home, true), Path::new("x.toml"));
    }

    #[test]
    fn the_usual_places_are_the_users_and_the_systems() {
        let both = env(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]);
        assert_eq!(usual_paths(&both), [Path::new("/x/export-queue/config.toml"), Path::new(SYSTEM_PATH)]);
        assert_eq!(usual_paths(&env(&[])), [Path::new(SYSTEM_PATH)]);
    }
}
