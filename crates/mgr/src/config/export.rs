//! Export tables (`[[export]]`) of a mgr's configuration: which clients may mount which directories, and the conditions
//! of access.

use super::{Config, KernelLayout};
use crate::error::Error;
use crate::exports::Rule;
use bytes::Bytes;
use ipnet::IpNet;
use layout::policy::parse_size;
use layout::{Origin, Part, Policy, Settings};
use nfs::exports::{Squash, Terms};
use serde::Deserialize;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Default user and group of squashed callers: `nobody`.
const NOBODY: u32 = 65534;

/// The operations that an export allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub enum Access {
    /// Read-write: clients may read and change files.
    #[default]
    #[serde(rename = "rw")]
    ReadWrite,
    /// Read-only: clients may only read files.
    #[serde(rename = "ro")]
    ReadOnly,
}

/// Which callers the mgr squashes: it replaces their user and group by the anonymous user and group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SquashWhom {
    /// The mgr squashes no callers.
    #[default]
    None,
    /// The mgr squashes the superuser (user 0).
    Root,
    /// The mgr squashes all callers, including the superuser.
    All,
}

/// A directory that clients may mount, with the conditions of access. A directory may be exported several times, to
/// different clients. For each client, the first export whose `clients` contain the address of the client applies.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// Path of the directory, from the root of the file system.
    #[serde(default = "root")]
    pub path: String,
    /// IP addresses and networks of the clients, as `10.1.0.0/16` or `fd00::7`. The default is all clients.
    #[serde(default)]
    pub clients: Vec<String>,
    /// Whether requests from other hosts must use a source port below 1024. Then only root of a client host can send
    /// requests for other users.
    #[serde(default = "yes")]
    pub privileged_ports: bool,
    /// The operations that the export allows.
    #[serde(default)]
    pub access: Access,
    /// Which callers the mgr squashes in this export.
    #[serde(default)]
    pub squash: SquashWhom,
    /// User id of squashed callers.
    #[serde(default = "nobody")]
    pub anon_uid: u32,
    /// Group id of squashed callers.
    #[serde(default = "nobody")]
    pub anon_gid: u32,
    /// The setting `kernel_layout` of this export; `None`: the mgr's setting `kernel_layout` applies.
    #[serde(alias = "layout")]
    pub kernel_layout: Option<KernelLayout>,
    /// The setting `stripe_unit` of this export; `None`: the mgr's setting `stripe_unit` applies.
    pub stripe_unit: Option<String>,
    /// The setting `stripe_count` of this export; `None`: the mgr's setting `stripe_count` applies.
    pub stripe_count: Option<u32>,
    /// The setting `mirrors` of this export; `None`: the mgr's setting `mirrors` applies.
    pub mirrors: Option<u32>,
    /// The setting `mds_threshold` of this export; `None`: the mgr's setting `mds_threshold` applies.
    pub mds_threshold: Option<String>,
    /// Policy settings for this export. They override the settings in the `policy` of the mgr.
    pub policy: Option<String>,
}

fn root() -> String {
    "/".to_owned()
}

fn yes() -> bool {
    true
}

fn nobody() -> u32 {
    NOBODY
}

impl Default for Export {
    /// A read-write export of the root directory for all clients.
    fn default() -> Self {
        Export {
            path: root(),
            clients: Vec::new(),
            privileged_ports: true,
            access: Access::default(),
            squash: SquashWhom::default(),
            anon_uid: NOBODY,
            anon_gid: NOBODY,
            kernel_layout: None,
            stripe_unit: None,
            stripe_count: None,
            mirrors: None,
            mds_threshold: None,
            policy: None,
        }
    }
}

/// Parses an export in the form of the option `--export`: a path and, after commas, `key=value` with the keys of the
/// `[[export]]` table. `+` separates several clients, and several policy settings.
impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut table = toml::Table::new();
        table.insert("path".into(), parts.next().unwrap_or_default().into());
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not of the form key=value, as in access=ro"))?;
            let value = match key {
                "clients" => toml::Value::Array(value.split('+').map(Into::into).collect()),
                "anon_uid" | "anon_gid" | "stripe_count" | "mirrors" => {
                    let number: u32 = value.parse().map_err(|_| format!("{key}: {value:?} is not a number"))?;
                    i64::from(number).into()
                }
                "privileged_ports" => {
                    value.parse::<bool>().map_err(|_| format!("{key}: {value:?} is neither true nor false"))?.into()
                }
                "policy" => value.replace('+', ",").into(),
                _ => value.into(),
            };
            table.insert(key.to_owned(), value);
        }
        table.try_into().map_err(|e: toml::de::Error| e.message().to_owned())
    }
}

fn bad<T>(name: &'static str, reason: String) -> Result<T, Error> {
    Err(Error::BadConfig { name, reason })
}

impl Export {
    /// Checks the export and returns it as a [`Rule`]. The settings of the mgr apply where the export sets none.
    pub(super) fn check(&self, config: &Config) -> Result<Rule, Error> {
        if !self.path.starts_with('/') {
            return bad(
                "export",
                format!("path {:?} does not begin with \"/\", the root of the file system", self.path),
            );
        }
        let path: Vec<Bytes> = self
            .path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(|part| Bytes::copy_from_slice(part.as_bytes()))
            .collect();
        if path.iter().any(|part| part == "." || part == ".." || part.len() > types::limits::NAME_MAX) {
            return bad("export", format!("path {:?} does not name a directory from the root down", self.path));
        }
        let clients = self.clients.iter().map(|text| {
            let address = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            address.map_err(|_| Error::BadConfig {
                name: "export",
                reason: format!("clients: {text:?} is neither an address nor a network, as in 10.1.0.0/16 or fd00::7"),
            })
        });
        let (uid, gid) = (self.anon_uid, self.anon_gid);
        let squash = match self.squash {
            SquashWhom::None => Squash::Nobody,
            SquashWhom::Root => Squash::Root { uid, gid },
            SquashWhom::All => Squash::Everybody { uid, gid },
        };
        let terms = Terms { read_only: self.access == Access::ReadOnly, squash };
        let client_settings = self.policy(config)?;
        Ok(Rule {
            path,
            clients: clients.collect::<Result<_, _>>()?,
            privileged_ports: self.privileged_ports,
            terms,
            policy: Policy::default().with(&client_settings),
            client_settings,
            kernel_layout: self.kernel_layout.unwrap_or(config.kernel_layout),
            mds_threshold: self.threshold(config)?,
        })
    }

    /// Returns the policy settings of the export that differ from the default policy.
    fn policy(&self, config: &Config) -> Result<Settings, Error> {
        let mut client_settings = Settings::default();
        let mut set = |part: Part, value: &str| {
            let set = client_settings.set(Origin::Server, part.name().as_bytes(), value.as_bytes());
            set.map_err(|e| Error::BadConfig { name: part.name(), reason: e.to_string() })
        };
        let count = self.stripe_count.unwrap_or(config.stripe_count);
        // Most kernel clients with the flexible files layout type cannot use striped files, and use the mgr path for
        // them. So the default for such exports is one iod for each file.
        let one = count == 0 && self.kernel_layout.unwrap_or(config.kernel_layout) == KernelLayout::Flexfiles;
        let count = if one { 1 } else { count }.to_string();
        set(Part::StripeUnit, self.stripe_unit.as_ref().unwrap_or(&config.stripe_unit))?;
        set(Part::StripeCount, &count)?;
        set(Part::Mirrors, &self.mirrors.unwrap_or(config.mirrors).to_string())?;
        client_settings.mgr_gather_delay = Some(Duration::from_millis(config.mgr_gather_delay_ms.into()));
        let usual = Policy::default();
        let same: Vec<Part> =
            client_settings.parts().filter(|part| client_settings.get(*part) == Some(usual.get(*part))).collect();
        client_settings.retain(|part| !same.contains(&part));
        for text in [&config.policy, &self.policy].into_iter().flatten() {
            let more = Settings::parse(Origin::Server, text).map_err(|e| e.to_string());
            let more = more.and_then(|more| match more.mgr_gather_delay {
                Some(_) => {
                    Err("a policy cannot set mgr_gather_delay; set mgr_gather_delay_ms, which is a key of its own"
                        .to_owned())
                }
                None => Ok(more),
            });
            client_settings.lay(&more.map_err(|reason| Error::BadConfig { name: "policy", reason })?);
        }
        Ok(client_settings)
    }

    fn threshold(&self, config: &Config) -> Result<Option<u64>, Error> {
        let Some(text) = self.mds_threshold.as_ref().or(config.mds_threshold.as_ref()) else { return Ok(None) };
        match parse_size(text) {
            Some(size) => Ok(Some(size)),
            None => bad("mds_threshold", format!("{text:?} is not a size; write bytes or a number with K, M, G or T")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_option_equals_the_same_table() {
        let one: Export =
            "/home,clients=10.0.0.0/8+fd00::7,privileged_ports=false,access=ro,squash=root,anon_uid=7,kernel_layout=none"
                .parse()
                .unwrap();
        let text = "path = \"/home\"\nclients = [\"10.0.0.0/8\", \"fd00::7\"]\nprivileged_ports = false\naccess = \"ro\"\nsquash = \"root\"\n\
                    anon_uid = 7\nkernel_layout = \"none\"\n";
        assert_eq!(one, toml::from_str(text).unwrap());
        assert_eq!("/".parse::<Export>().unwrap(), Export::default());
        let former: Export = "/home,layout=none".parse().unwrap();
        assert_eq!(former, "/home,kernel_layout=none".parse().unwrap());
        for (text, why) in [
            ("/a,ro", "key=value"),
            ("/a,acess=ro", "access"),
            ("/a,access=often", "rw"),
            ("/a,anon_uid=-1", "anon_uid"),
            ("/a,squash=some", "squash"),
        ] {
            let error = text.parse::<Export>().unwrap_err();
            assert!(error.contains(why) || error.contains("unknown"), "{text}: {error}");
        }
    }

    #[test]
    fn invalid_terms_of_an_export_are_refused() {
        let config = Config::new("/d", "/c", vec!["a:1".into()]);
        let check = |text: &str| text.parse::<Export>().unwrap().check(&config);
        let rule = check("//a/b/,clients=10.0.0.1,squash=all,stripe_unit=64K,mds_threshold=0").unwrap();
        assert_eq!(rule.path, ["a", "b"]);
        assert_eq!(rule.clients, ["10.0.0.1/32".parse().unwrap()]);
        assert_eq!((rule.policy.stripe_unit, rule.mds_threshold), (65536, Some(0)));
        let count = |text: &str| check(text).unwrap().policy.stripe_count;
        assert_eq!((count("/,kernel_layout=flexfiles"), count("/,kernel_layout=flexfiles,stripe_count=2")), (1, 2));
        assert_eq!((count("/,kernel_layout=flexfiles-striped"), count("/")), (0, 0));
        assert_eq!(rule.terms.squash, Squash::Everybody { uid: 65534, gid: 65534 });
        for text in
            ["a", "", "/a/../b", "/a,clients=example", "/a,stripe_unit=100", "/a,mds_threshold=some", "/a,mirrors=3"]
        {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
