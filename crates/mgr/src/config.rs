//! Configuration file of a mgr: its settings, with their defaults and valid ranges.

mod export;

pub use export::{Access, Export, SquashWhom};

use crate::error::{Error, io_error};
use crate::exports::{EXPORTS_MAX, Rule};
use layout::Policy;
use layout::policy::{former_values, parse_size};
use net::Address;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::limits::{GATHER_BYTES, GATHER_BYTES_MAX};

/// The TCP port of NFS, on which a mgr listens by default.
pub const PORT: u16 = 2049;

/// Deprecated keys of the configuration file and of its export tables, each with the new key. One release still accepts
/// the deprecated keys.
const FORMER_KEYS: [(&str, &str); 2] = [("gather_delay_ms", "mgr_gather_delay_ms"), ("layout", "kernel_layout")];

/// The configuration of a mgr, as its TOML file holds it. An unknown key in the file is an error.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Directory of the metadata store, created by `weir mkfs`.
    pub dir: PathBuf,
    /// Path of the cluster file.
    pub cluster_file: PathBuf,
    /// The addresses on which the mgr listens, each `host:port` or the path of a Unix socket.
    #[serde(default = "default_listen")]
    pub listen: Vec<String>,
    /// The addresses of the iods, each `host:port` or the path of a Unix socket.
    pub iods: Vec<String>,
    /// The lease period in seconds: how long the mgr keeps the state of a client that does not renew its lease.
    #[serde(default = "default_lease")]
    pub lease_secs: u32,
    /// Lifetime of a capability, or of a ticket for an iod, in seconds. Clients renew both before they expire.
    #[serde(default = "default_capability")]
    pub capability_secs: u32,
    /// Lifetime in seconds of the data servers' filehandles in the layouts of kernel clients. A kernel client that has
    /// a file open for longer gets new filehandles from the mgr.
    #[serde(default = "default_data_handle")]
    pub data_handle_secs: u32,
    /// Stripe unit of new files, such as `1M` or `65536`, if the directory's policy does not set it.
    ///
    /// 1 MiB is the payload of one request: every smaller file is one object on one iod, and one request reads or
    /// writes it. Larger units leave iods idle in reads of a few MiB. Smaller units need more requests for a given
    /// number of bytes.
    #[serde(default = "default_stripe_unit")]
    pub stripe_unit: String,
    /// Number of iods for each new file, if the directory's policy does not set it; 0 means all iods that are up.
    #[serde(default)]
    pub stripe_count: u32,
    /// Number of copies of each new file (1 or 2), if the directory's policy does not set it.
    #[serde(default = "default_mirrors")]
    pub mirrors: u32,
    /// The layout type that the mgr offers to clients that do not speak the native data program, such as kernel
    /// clients.
    #[serde(default, alias = "layout")]
    pub kernel_layout: KernelLayout,
    /// How long kernel clients wait for an unreachable iod, in seconds. After this time, requests of kernel clients for
    /// data on this iod fail with EIO. The mgr also recalls the layouts that use this iod.
    #[serde(default = "default_iod_wait")]
    pub iod_wait_secs: u32,
    /// How long the mgr holds small writes on the mgr path in memory to join them before it sends them to the iods, in
    /// milliseconds. 0: the mgr holds no writes. A COMMIT sends the held bytes at once.
    #[serde(default = "default_gather_delay", alias = "gather_delay_ms")]
    pub mgr_gather_delay_ms: u32,
    /// Memory for all gathered writes together, such as `64M`. If a write does not fit into this memory, the mgr sends
    /// the write to the iods at once.
    #[serde(default = "default_gather_memory")]
    pub gather_memory: String,
    /// Largest size of an inline file, such as `4K`; `0` disables inline files. The mgr stores the bytes of an inline
    /// file with its metadata. The bytes move to iods when the file grows beyond this size, or when a client requests a
    /// write layout.
    #[serde(default = "default_inline_max")]
    pub inline_max: String,
    /// File length below which kernel clients use the mgr path although they have a layout, such as `64K`; `0`: always
    /// the direct path. The default is the stripe unit of the file, because the direct path is no faster for a file on
    /// one iod.
    #[serde(default)]
    pub mds_threshold: Option<String>,
    /// Policy settings, such as `write_threshold=32K,access=page`, for files whose directory does not set them.
    #[serde(default)]
    pub policy: Option<String>,
    /// The exports that clients may mount. The default is the root directory, for all clients.
    #[serde(default, rename = "export")]
    pub exports: Vec<Export>,
    /// Whether the mgr accepts an older copy of the metadata store at its start. The mgr then raises the epoch and the
    /// next inode number of the store above those that the iods have recorded. This is the option
    /// `--recover-old-store`, not a key of the file.
    #[serde(skip)]
    pub recover_old_store: bool,
}

/// The layout type that the mgr offers to kernel clients. A kernel uses only one layout type for each file system, so
/// the mgr offers one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelLayout {
    /// The files layout type (RFC 8881 §13): the direct path to all iods of a file.
    #[default]
    Files,
    /// The flexible files layout type (RFC 8435): the direct path to the iod of a file. Each new file is on one iod.
    Flexfiles,
    /// The flexible files layout type, with files striped over several iods. Kernels before 6.18 cannot read or write
    /// such files.
    #[serde(rename = "flexfiles-striped")]
    FlexfilesStriped,
    /// No layouts for kernel clients: all their data take the mgr path.
    None,
}

impl std::str::FromStr for KernelLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "files" => Ok(KernelLayout::Files),
            "flexfiles" => Ok(KernelLayout::Flexfiles),
            "flexfiles-striped" => Ok(KernelLayout::FlexfilesStriped),
            "none" => Ok(KernelLayout::None),
            _ => Err(format!("{text:?} is none of \"files\", \"flexfiles\", \"flexfiles-striped\", \"none\"")),
        }
    }
}

fn default_listen() -> Vec<String> {
    vec![format!("0.0.0.0:{PORT}")]
}

fn default_lease() -> u32 {
    90
}

fn default_capability() -> u32 {
    600
}

fn default_data_handle() -> u32 {
    6 * 3600
}

/// Returns the default of `iod_wait_secs`: 6 seconds. A kernel client that doubles its pause from 0.1 s on retries a
/// request 6.3 s and then 12.7 s after the first attempt. With 6 seconds, the retry at 6.3 s already gets EIO.
fn default_iod_wait() -> u32 {
    6
}

/// Returns the default of `mgr_gather_delay_ms`: 2 ms, about the time that an iod takes for a write. So the delay is
/// not noticeable, and the mgr can join the writes that arrive in this time.
fn default_gather_delay() -> u32 {
    2
}

fn default_gather_memory() -> String {
    format!("{}M", GATHER_BYTES >> 20)
}

fn default_inline_max() -> String {
    "4K".to_owned()
}

fn default_mirrors() -> u32 {
    1
}

fn default_stripe_unit() -> String {
    "1M".to_owned()
}

/// Shortest and longest valid lease period, in seconds.
const LEASE: std::ops::RangeInclusive<u32> = 1..=3600;
/// Shortest and longest valid lifetime of a capability, and of a data server's filehandle, in seconds.
pub(crate) const RIGHT_SECS: std::ops::RangeInclusive<u32> = 5..=7 * 86400;
/// Shortest and longest valid time for which kernel clients wait for an unreachable iod, in seconds.
const IOD_WAIT: std::ops::RangeInclusive<u32> = 0..=86400;
/// Shortest and longest valid time for which the mgr holds gathered writes, in milliseconds.
const GATHER_DELAY: std::ops::RangeInclusive<u32> = 0..=60_000;
/// Largest valid `inline_max`, in bytes. Each write to an inline file rewrites the whole file, so writes to larger
/// files are slow.
const INLINE_MAX: u64 = 16 << 10;
/// Largest number of iods of one mgr. An iod number has 16 bits.
const IODS_MAX: usize = 4096;

/// A configuration with parsed and checked values.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) listen: Vec<Address>,
    pub(crate) iods: Vec<Address>,
    pub(crate) policy: Policy,
    pub(crate) lease_secs: u32,
    pub(crate) capability_secs: u32,
    pub(crate) data_handle_secs: u32,
    pub(crate) iod_wait_secs: u32,
    pub(crate) gather_delay: Duration,
    pub(crate) gather_bytes: usize,
    pub(crate) inline_max: u64,
    pub(crate) exports: Vec<Rule>,
}

impl Config {
    /// Returns a configuration with these paths and iods, and the default for every other setting.
    pub fn new(dir: impl Into<PathBuf>, cluster_file: impl Into<PathBuf>, iods: Vec<String>) -> Self {
        Config {
            dir: dir.into(),
            cluster_file: cluster_file.into(),
            listen: default_listen(),
            iods,
            lease_secs: default_lease(),
            capability_secs: default_capability(),
            data_handle_secs: default_data_handle(),
            stripe_unit: default_stripe_unit(),
            stripe_count: 0,
            mirrors: default_mirrors(),
            kernel_layout: KernelLayout::default(),
            mds_threshold: None,
            policy: None,
            exports: Vec::new(),
            iod_wait_secs: default_iod_wait(),
            mgr_gather_delay_ms: default_gather_delay(),
            gather_memory: default_gather_memory(),
            inline_max: default_inline_max(),
            recover_old_store: false,
        }
    }

    /// Reads and parses the configuration file at `path`.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let hint = "give the mgr's configuration file";
        let text = std::fs::read_to_string(path).map_err(|e| io_error(path, "read", hint, e))?;
        Config::parse(&text).map_err(|reason| Error::BadFile { path: path.to_owned(), reason })
    }

    /// Parses the TOML text of a configuration. The error is the message of the TOML parser, which names the line and
    /// the key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        // The TOML parser maps a deprecated key to the new key without any notice. So this loop searches the text for
        // deprecated keys and logs them.
        for key in text.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim()) {
            if let Some((old, new)) = FORMER_KEYS.iter().find(|(old, _)| *old == key) {
                tracing::warn!(old, new, "deprecated key of the configuration");
            }
        }
        Ok(config)
    }

    /// Logs a warning for each deprecated value in the policy settings of the mgr and of its exports.
    fn warn_of_former_values(&self) {
        let texts = std::iter::once(&self.policy).chain(self.exports.iter().map(|export| &export.policy));
        let former = texts.flatten().flat_map(|text| former_values(text));
        former.for_each(|(old, new)| tracing::warn!(old, new, "deprecated value in a policy"));
    }

    pub(crate) fn check(&self) -> Result<Checked, Error> {
        self.warn_of_former_values();
        let addresses = |name, texts: &[String], port| {
            let parse = |text: &String| {
                Address::parse(text, port).map_err(|e| Error::BadConfig { name, reason: e.to_string() })
            };
            texts.iter().map(parse).collect::<Result<Vec<_>, _>>()
        };
        fn bad<T>(name: &'static str, reason: String) -> Result<T, Error> {
            Err(Error::BadConfig { name, reason })
        }
        let listen = addresses("listen", &self.listen, Some(PORT))?;
        let iods = addresses("iods", &self.iods, None)?;
        if listen.is_empty() {
            return bad("listen", "name at least one address, as in [\"0.0.0.0:2049\"]".into());
        }
        if iods.is_empty() {
            return bad("iods", "name at least one iod, as in [\"node1:2050\"]: they hold the files' bytes".into());
        }
        if iods.len() > IODS_MAX {
            return bad("iods", format!("{} iods; one mgr serves at most {IODS_MAX}", iods.len()));
        }
        if let Some(twice) = iods.iter().enumerate().find(|(i, a)| iods[..*i].contains(a)) {
            return bad("iods", format!("{} is named twice", twice.1));
        }
        for (name, value, allowed) in [
            ("lease_secs", self.lease_secs, LEASE),
            ("capability_secs", self.capability_secs, RIGHT_SECS),
            ("data_handle_secs", self.data_handle_secs, RIGHT_SECS),
            ("iod_wait_secs", self.iod_wait_secs, IOD_WAIT),
            ("mgr_gather_delay_ms", self.mgr_gather_delay_ms, GATHER_DELAY),
        ] {
            if !allowed.contains(&value) {
                return bad(name, format!("{value} is not from {} to {}", allowed.start(), allowed.end()));
            }
        }
        let gather_bytes = parse_size(&self.gather_memory).and_then(|bytes| usize::try_from(bytes).ok());
        let Some(gather_bytes) = gather_bytes.filter(|bytes| *bytes <= GATHER_BYTES_MAX) else {
            let most = GATHER_BYTES_MAX >> 20;
            return bad("gather_memory", format!("{:?} is not a size of at most {most}M", self.gather_memory));
        };
        let Some(inline_max) = parse_size(&self.inline_max).filter(|bytes| *bytes <= INLINE_MAX) else {
            let most = INLINE_MAX >> 10;
            return bad("inline_max", format!("{:?} is not a size of at most {most}K", self.inline_max));
        };
        if self.exports.len() > EXPORTS_MAX {
            return bad("export", format!("{} exports; one mgr has at most {EXPORTS_MAX}", self.exports.len()));
        }
        // The mgr's own policy is that of a default export, which is also the only export if none is configured.
        let everything = Export::default().check(self)?;
        let policy = everything.policy;
        let exports = match self.exports.is_empty() {
            true => vec![everything],
            false => self.exports.iter().map(|export| export.check(self)).collect::<Result<_, _>>()?,
        };
        let (lease_secs, capability_secs, iod_wait_secs) = (self.lease_secs, self.capability_secs, self.iod_wait_secs);
        Ok(Checked {
            listen,
            iods,
            policy,
            lease_secs,
            capability_secs,
            data_handle_secs: self.data_handle_secs,
            iod_wait_secs,
            gather_delay: Duration::from_millis(self.mgr_gather_delay_ms.into()),
            gather_bytes,
            inline_max,
            exports,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_keys_are_accepted_but_not_beside_their_new_names() {
        let with =
            |keys: &str| Config::parse(&format!("dir = \"/d\"\ncluster_file = \"/c\"\niods = [\"a:1\"]\n{keys}"));
        assert_eq!(with("gather_delay_ms = 7\n").unwrap(), with("mgr_gather_delay_ms = 7\n").unwrap());
        let error = with("gather_delay_ms = 7\nmgr_gather_delay_ms = 7\n").unwrap_err();
        assert!(error.contains("duplicate field `mgr_gather_delay_ms`"), "{error}");
        let none = with("layout = \"none\"\n[[export]]\nlayout = \"flexfiles\"\n").unwrap();
        assert_eq!(none.kernel_layout, KernelLayout::None);
        assert_eq!(none.exports[0].kernel_layout, Some(KernelLayout::Flexfiles));
        assert_eq!(none, with("kernel_layout = \"none\"\n[[export]]\nkernel_layout = \"flexfiles\"\n").unwrap());
    }

    #[test]
    fn defaults_and_everything_set() {
        let text = "dir = \"/d\"\ncluster_file = \"/c\"\niods = [\"a:1\", \"/run/b\"]\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config, Config::new("/d", "/c", vec!["a:1".into(), "/run/b".into()]));
        let checked = config.check().unwrap();
        assert_eq!(checked.listen, ["0.0.0.0:2049".parse().unwrap()]);
        assert_eq!((checked.policy, checked.lease_secs, checked.capability_secs), (Policy::default(), 90, 600));
        let more = "listen = [\"[::]\", \"/run/mgr\"]\nlease_secs = 15\ncapability_secs = 60\n\
                    stripe_unit = \"64\"\nstripe_count = 3\n";
        let checked = Config::parse(&format!("{text}{more}")).unwrap().check().unwrap();
        assert_eq!(checked.listen, ["[::]:2049".parse().unwrap(), "/run/mgr".parse().unwrap()]);
        assert_eq!((checked.policy.stripe_unit, checked.policy.stripe_count), (64, 3));
    }

    #[test]
    fn bad_settings_are_named() {
        let unknown = Config::parse("dir = \"/d\"\ncluster_file = \"/c\"\niods = []\nidos = 1\n").unwrap_err();
        assert!(unknown.contains("idos") && unknown.contains("line 4"), "{unknown}");
        assert!(Config::parse("dir = \"/d\"\niods = []\n").unwrap_err().contains("cluster_file"));
        let good = Config::new("/d", "/c", vec!["a:1".into()]);
        good.check().unwrap();
        for (name, config) in [
            ("iods", Config { iods: vec![], ..good.clone() }),
            ("iods", Config { iods: vec!["nowhere".into()], ..good.clone() }),
            ("iods", Config { iods: vec!["a:1".into(), "a:1".into()], ..good.clone() }),
            ("listen", Config { listen: vec![], ..good.clone() }),
            ("listen", Config { listen: vec!["a:b:c".into()], ..good.clone() }),
            ("lease_secs", Config { lease_secs: 0, ..good.clone() }),
            ("capability_secs", Config { capability_secs: u32::MAX, ..good.clone() }),
            ("data_handle_secs", Config { data_handle_secs: 1, ..good.clone() }),
            ("iod_wait_secs", Config { iod_wait_secs: u32::MAX, ..good.clone() }),
            ("stripe_unit", Config { stripe_unit: "100".into(), ..good.clone() }),
            ("stripe_unit", Config { stripe_unit: "lots".into(), ..good.clone() }),
            ("stripe_count", Config { stripe_count: 100_000, ..good.clone() }),
            ("export", Config { exports: vec!["a".parse().unwrap()], ..good.clone() }),
            ("export", Config { exports: vec![Export::default(); 65], ..good.clone() }),
            ("mirrors", Config { mirrors: 0, ..good.clone() }),
            ("mgr_gather_delay_ms", Config { mgr_gather_delay_ms: 60_001, ..good.clone() }),
            ("gather_memory", Config { gather_memory: "257M".into(), ..good.clone() }),
            ("gather_memory", Config { gather_memory: "some".into(), ..good.clone() }),
            ("policy", Config { policy: Some("access=fast".into()), ..good.clone() }),
            ("policy", Config { policy: Some("mgr_gather_delay=5ms".into()), ..good.clone() }),
            ("inline_max", Config { inline_max: "17K".into(), ..good.clone() }),
            ("inline_max", Config { inline_max: "all".into(), ..good.clone() }),
            ("mds_threshold", Config { mds_threshold: Some("much".into()), ..good.clone() }),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
