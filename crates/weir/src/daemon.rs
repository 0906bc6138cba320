//! Code that all daemon commands share: configuration files, the ready message, and the stop of the daemon.

use crate::failure::{Exit, Failure};
use crate::logging::DAEMON_EVENTS;
use crate::show;
use crate::stop::Stop;
use net::files::FILE;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Options that select how a daemon reports that it is ready.
#[derive(clap::Args, Clone)]
pub struct Ready {
    /// When the daemon is ready, write a JSON line with its addresses to this file (atomically)
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Print the JSON line with the addresses on standard output, and nothing else
    #[arg(long)]
    json: bool,
}

/// The message of a daemon that is ready to serve, as one JSON line.
#[derive(Serialize)]
pub struct ReadyLine {
    /// The kind of daemon: `mgr`, `iod` or `up`.
    pub daemon: &'static str,
    /// The value of `WEIR_URL` with which commands use the file system of this daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The addresses at which the daemon listens.
    pub addresses: Vec<String>,
    /// The directory with the data of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// The addresses at which the iods of a local cluster listen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iods: Option<Vec<String>>,
}

impl Ready {
    /// Returns whether the daemon prints nothing on standard output but the JSON line that reports its start.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Reports that the daemon is ready: in the log, in the ready file, and on standard output.
    pub fn tell(&self, line: &ReadyLine) -> Result<(), Failure> {
        let (addresses, version) = (line.addresses.join(" "), env!("CARGO_PKG_VERSION"));
        tracing::info!(target: DAEMON_EVENTS, daemon = line.daemon, %addresses, version, "started");
        if let Some(path) = &self.ready_file {
            let text = serde_json::to_string(line).map_err(Failure::new)? + "\n";
            write_whole(path, text.as_bytes())?;
        }
        if self.json {
            return show::json(line);
        }
        match line.daemon {
            "up" => Ok(()),
            name => show::line(&format!("{name} ready at {}", line.addresses.join(", "))),
        }
    }
}

/// Waits until the user stops the daemon. If the mgr in this process fails, ends the process at once. So the process
/// writes nothing more to the disk, which may have caused the failure.
pub async fn until_stopped(stop: &Stop, mgr: &mgr::Running) {
    tokio::select! {
        () = stop.wait() => {}
        error = mgr.failed() => {
            eprintln!("{}", Failure::from(error));
            std::process::exit(Exit::Failed as i32);
        }
    }
}

/// Logs that a daemon has stopped cleanly.
pub fn stopped(daemon: &'static str) {
    tracing::info!(target: DAEMON_EVENTS, daemon, "stopped");
}

/// Writes a file that only its owner can open. The write replaces the old file atomically and durably: readers see the
/// whole old file or the whole new file, even after a crash.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::from(e).about(path.display());
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path
        .file_name()
        .ok_or_else(|| Failure::usage(format!("{}: the path has no file name", path.display())))?
        .to_owned();
    name.push(".new");
    let temporary = dir.join(name);
    let mut options = std::fs::File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(FILE).open(&temporary).map_err(failed)?;
    // An interrupted write may have left a temporary file with a wider mode, so set the mode explicitly.
    file.set_permissions(Permissions::from_mode(FILE)).map_err(failed)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)?;
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
}

/// Parses a TOML file. For an unknown key, the error names the line, the key, and all valid keys.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::from(e).about(path.display()))?;
    toml::from_str(&text).map_err(|e| bad_config(format!("{}: {}", path.display(), e.to_string().trim_end())))
}

/// Returns the failure for an invalid configuration.
pub fn bad_config(what: impl std::fmt::Display) -> Failure {
    Failure::usage(what).next("correct the configuration, then start again")
}
