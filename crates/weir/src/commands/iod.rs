//! `weir iod`: runs a data server.

use crate::daemon;
use crate::deprecated;
use crate::failure::{Exit, Failure, Outcome};
use crate::nfs::Nfs;
use crate::session::runtime;
use crate::stop::Stop;
use iod::{Config, Iod};
use mgr::ClusterFile;
use serde::Deserialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// The default listen address of an iod.
const LISTEN: &str = "0.0.0.0:2050";

/// Run a data server
///
/// Settings come from a TOML file, from options, or from both. Options override the file.
#[derive(clap::Args)]
#[command(
    after_help = "Configuration file (TOML). The keys are the names of the options; the values shown are defaults:
  dir = \"/srv/weir/iod\"                       made by \"weir mkfs iod\"
  cluster_file = \"/etc/weir/cluster.toml\"
  listen = [\"0.0.0.0:2050\"]
  nfs_listen = [\"0.0.0.0:3050\"]             the port of listen plus 1000; [\"none\"]: no NFS
  nfs_advertise = []                         the address:port that kernel clients use, if it differs
  unix = true
  short_circuit = true
  congestion = \"cubic\"
  max_connections = 4096
  stall_secs = 30

Examples:
  weir iod --config /etc/weir/iod.toml
  weir iod --dir /srv/weir/iod --cluster-file /etc/weir/cluster.toml --listen 10.0.0.7:2050"
)]
pub struct Args {
    /// The configuration file, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    ready: daemon::Ready,
}

/// The settings of an iod, from a configuration file or from options.
#[derive(clap::Args, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The directory of the object store
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// The cluster file of the file system
    #[arg(long, value_name = "FILE")]
    cluster_file: Option<PathBuf>,
    /// Address to listen on, host:port; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Vec<String>>,
    /// Address of the NFS service for kernel clients (pNFS data server), host:port; "none": no NFS; may be repeated
    /// [default: the port of --listen plus 1000, or a free port]
    #[arg(long, value_name = "ADDRESS")]
    nfs_listen: Option<Vec<String>>,
    /// The address:port that kernel clients use, if it differs from --nfs-listen (behind NAT); may be repeated
    #[arg(long, value_name = "ADDRESS")]
    nfs_advertise: Option<Vec<String>>,
    /// Also accept clients of this machine on a Unix socket
    #[arg(long, value_name = "BOOL")]
    unix: Option<bool>,
    /// Pass open object files over the Unix socket to clients of root and of the iod's user, for short-circuit reads
    #[arg(long, value_name = "BOOL")]
    #[serde(alias = "lend")]
    short_circuit: Option<bool>,
    /// Congestion control of TCP connections; "system": the kernel's default
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Maximum number of connections
    #[arg(long, value_name = "COUNT")]
    max_connections: Option<usize>,
    /// How long a peer may pause inside a request before the iod closes the connection
    #[arg(long, value_name = "SECONDS")]
    stall_secs: Option<u32>,
}

/// Runs the iod until SIGINT or SIGTERM.
pub fn run(args: Args) -> Outcome {
    let file = match &args.config {
        Some(path) => daemon::load(path).inspect(|_| deprecated::warn_of_keys(path))?,
        None => Settings::default(),
    };
    let settings = args.settings.over(file);
    let (nfs, advertised) = settings.nfs()?;
    let mut config = settings.config()?;
    let nfs = nfs.unwrap_or_else(|| Nfs::Near(config.listen.clone()));
    let dir = config.dir.clone();
    let runtime = runtime()?;
    let running = runtime.block_on(async {
        let stop = Stop::listen_as_daemon("iod")?;
        let (listeners, addresses) = nfs.bind(advertised).await?;
        config.data_server = addresses;
        let running = Iod::start(config)?;
        let data_server = ds::start(running.daemon(), listeners).await.map_err(Failure::from_message)?;
        args.ready.tell(&daemon::ReadyLine {
            daemon: "iod",
            url: None,
            addresses: running.addrs().iter().map(ToString::to_string).collect(),
            dir: Some(dir),
            iods: None,
        })?;
        stop.wait().await;
        data_server.stop().await;
        Ok::<_, Failure>(running)
    })?;
    drop(running);
    daemon::stopped("iod");
    runtime.shutdown_background();
    Ok(Exit::Done)
}

impl Settings {
    /// Merges two sets of settings: takes each setting from `self` if `self` has it, otherwise from `other`.
    fn over(self, other: Settings) -> Settings {
        Settings {
            dir: self.dir.or(other.dir),
            cluster_file: self.cluster_file.or(other.cluster_file),
            listen: self.listen.or(other.listen),
            nfs_listen: self.nfs_listen.or(other.nfs_listen),
            nfs_advertise: self.nfs_advertise.or(other.nfs_advertise),
            unix: self.unix.or(other.unix),
            short_circuit: self.short_circuit.or(other.short_circuit),
            congestion: self.congestion.or(other.congestion),
            max_connections: self.max_connections.or(other.max_connections),
            stall_secs: self.stall_secs.or(other.stall_secs),
        }
    }

    /// Returns the addresses at which the iod serves NFS, and the addresses that NFS clients receive for the iod.
    fn nfs(&self) -> Result<(Option<Nfs>, Vec<SocketAddr>), Failure> {
        let resolved =
            |name, texts: &[String]| texts.iter().map(|text| resolve(name, text)).collect::<Result<Vec<_>, _>>();
        let listen = match self.nfs_listen.as_deref() {
            None => None,
            Some([one]) if one == "none" => Some(Nfs::At(Vec::new())),
            Some(texts) => Some(Nfs::At(resolved("nfs_listen", texts)?)),
        };
        Ok((listen, resolved("nfs_advertise", self.nfs_advertise.as_deref().unwrap_or_default())?))
    }

    fn config(self) -> Result<Config, Failure> {
        let (Some(dir), Some(file)) = (self.dir, self.cluster_file) else {
            return Err(Failure::usage("the object store and the cluster file are not given")
                .next("give --config FILE, or --dir and --cluster-file"));
        };
        let listen = self.listen.unwrap_or_else(|| vec![LISTEN.to_owned()]);
        let listen = listen.iter().map(|text| resolve("listen", text)).collect::<Result<Vec<_>, _>>()?;
        let cluster = ClusterFile::load(&file)?;
        let mut config = Config::new(dir, cluster.fsid, cluster.key, listen);
        config.unix = self.unix.unwrap_or(config.unix);
        config.short_circuit = self.short_circuit.unwrap_or(config.short_circuit);
        match self.congestion.as_deref() {
            None => {}
            Some("system") => config.congestion = None,
            Some(name) => config.congestion = Some(known_congestion(name)?),
        }
        config.max_connections = self.max_connections.unwrap_or(config.max_connections);
        match self.stall_secs {
            Some(0) => {
                return Err(Failure::usage("stall_secs: 0 would disconnect every client").next("write at least 1"));
            }
            Some(secs) => config.stall = Duration::from_secs(secs.into()),
            None => {}
        }
        Ok(config)
    }
}

/// Returns `name` if the kernel has a TCP congestion control of this name.
fn known_congestion(name: &str) -> Result<String, Failure> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
    match rustix::net::sockopt::set_tcp_congestion(&socket, name) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL) => {
            let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            let known = known.map(|names| format!("choose one of: {}", names.trim())).unwrap_or_default();
            Err(Failure::usage(format!("congestion: this kernel has no {name:?}")).next(known))
        }
        // An error other than ENOENT and EINVAL means that the kernel has the congestion control `name`. For example,
        // EPERM means that only root may choose this congestion control.
        _ => Ok(name.to_owned()),
    }
}

fn resolve(name: &str, text: &str) -> Result<SocketAddr, Failure> {
    let hint = "write host:port, for example 10.0.0.7:2050";
    let found = text.to_socket_addrs().map_err(|e| Failure::usage(format!("{name}: {text:?}: {e}")).next(hint))?;
    let mut found = found;
    found.next().ok_or_else(|| Failure::usage(format!("{name}: {text:?}: no such host")).next(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_reported_with_the_known_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("iod.toml");
        std::fs::write(&path, "dir = \"/x\"\nlisten_on = [\"a:1\"]\n").unwrap();
        let failure = daemon::load::<Settings>(&path).map(drop).unwrap_err();
        assert_eq!(failure.code, Exit::Usage);
        for part in ["iod.toml", "line 2", "listen_on", "max_connections"] {
            assert!(failure.what.contains(part), "{part} is not in {failure}");
        }
    }

    #[test]
    fn the_printed_configuration_has_every_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("iod.toml");
        let text = crate::config_files::iod("/srv/iod".as_ref(), "/etc/c.toml".as_ref());
        std::fs::write(&path, crate::config_files::tests::spelled_out(&text)).unwrap();
        let all: Settings = daemon::load(&path).unwrap();
        assert_eq!(all.dir.as_deref(), Some("/srv/iod".as_ref()));
        let set = [all.listen.is_some(), all.nfs_listen.is_some(), all.nfs_advertise.is_some(), all.unix.is_some()];
        let more = [
            all.short_circuit.is_some(),
            all.congestion.is_some(),
            all.max_connections.is_some(),
            all.stall_secs.is_some(),
        ];
        assert_eq!([set, more], [[true; 4]; 2], "{text}");
        std::fs::write(&path, "lend = false\n").unwrap();
        assert_eq!(daemon::load::<Settings>(&path).unwrap().short_circuit, Some(false), "the former name of the key");
    }

    #[test]
    fn options_override_the_file() {
        let file = Settings { listen: Some(vec!["a:1".into()]), unix: Some(false), ..Settings::default() };
        let options = Settings { listen: Some(vec!["b:2".into()]), ..Settings::default() };
        let both = options.over(file);
        assert_eq!((both.listen, both.unix), (Some(vec!["b:2".to_owned()]), Some(false)));
    }

    #[test]
    fn missing_settings_and_bad_addresses_are_usage_errors() {
        assert_eq!(Settings::default().config().map(drop).unwrap_err().code, Exit::Usage);
        for bad in ["", "nowhere", "h:x", "127.0.0.1:65536"] {
            assert_eq!(resolve("listen", bad).unwrap_err().code, Exit::Usage, "{bad}");
        }
        assert!(resolve("listen", "127.0.0.1:0").is_ok());
    }
}
