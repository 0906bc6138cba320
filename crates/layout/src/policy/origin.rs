//! The sources of policy settings, such as the mount options, and the order of precedence between sources.

use super::{Part, Policy, Settings};

/// A source of policy settings. The sources are in ascending order of precedence: a later source overrides the earlier
/// ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// The defaults of the client's layout driver.
    Driver,
    /// The configuration file of the mgr, which can set policy settings for the whole file system or for an export.
    Server,
    /// The extended attributes of a directory, which apply to the files in it. A new directory copies the attributes of
    /// its parent.
    Directory,
    /// The mount options.
    Mount,
    /// The environment variable `WEIR_POLICY` of the mounting process.
    Environment,
    /// The extended attributes of the file itself.
    File,
    /// A single open of the file: an access hint of the program, or the flag `O_DIRECT`.
    Open,
}

impl Origin {
    /// All sources of policy settings, in order of increasing precedence.
    pub const ALL: [Origin; 7] = [
        Origin::Driver,
        Origin::Server,
        Origin::Directory,
        Origin::Mount,
        Origin::Environment,
        Origin::File,
        Origin::Open,
    ];

    /// Returns the name of the source, as commands print it.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Driver => "driver",
            Origin::Server => "server",
            Origin::Directory => "directory",
            Origin::Mount => "mount",
            Origin::Environment => "environment",
            Origin::File => "file",
            Origin::Open => "open",
        }
    }

    /// Returns a phrase for error messages that names the source, such as "for a mount".
    pub(super) fn place(self) -> &'static str {
        match self {
            Origin::Driver => "in a driver",
            Origin::Server => "in the configuration of the mgr",
            Origin::Directory => "for a directory",
            Origin::Mount => "for a mount",
            Origin::Environment => "in the environment",
            Origin::File => "for a file",
            Origin::Open => "for an open file",
        }
    }
}

/// The policy settings of every source except the layout driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// Settings from the configuration of the mgr ([`Origin::Server`]).
    pub server: Settings,
    /// Settings from the extended attributes of the file's directory ([`Origin::Directory`]).
    pub directory: Settings,
    /// Settings from the mount options ([`Origin::Mount`]).
    pub mount: Settings,
    /// Settings from the environment variable `WEIR_POLICY` ([`Origin::Environment`]).
    pub environment: Settings,
    /// Settings from the extended attributes of the file ([`Origin::File`]).
    pub file: Settings,
    /// Settings from the open of the file ([`Origin::Open`]).
    pub open: Settings,
}

impl Layers {
    /// Returns the policy settings of a source; `None` for the layout driver, which has a complete policy instead.
    fn of(&self, origin: Origin) -> Option<&Settings> {
        match origin {
            Origin::Driver => None,
            Origin::Server => Some(&self.server),
            Origin::Directory => Some(&self.directory),
            Origin::Mount => Some(&self.mount),
            Origin::Environment => Some(&self.environment),
            Origin::File => Some(&self.file),
            Origin::Open => Some(&self.open),
        }
    }
}

/// The effective policy: the merged settings of all sources, and for each setting the source of its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effective {
    /// The merged policy, with a value for every setting.
    pub policy: Policy,
    origins: [Origin; Part::ALL.len()],
}

impl Effective {
    /// Returns the source from which the value of a policy setting comes.
    pub fn origin(&self, part: Part) -> Origin {
        self.origins[part as usize]
    }

    /// Returns name, value and source of every policy setting, in the order in which commands show them.
    pub fn rows(&self) -> impl Iterator<Item = (Part, String, Origin)> + '_ {
        Part::ALL.iter().map(|part| (*part, self.policy.get(*part), self.origin(*part)))
    }
}

/// Merges the settings of all sources into the effective policy. Each setting gets its value from the source of highest
/// precedence that contains the setting and is allowed to contain it.
pub fn merge(driver: &Policy, layers: &Layers) -> Effective {
    let mut effective = Effective { policy: *driver, origins: [Origin::Driver; Part::ALL.len()] };
    for origin in Origin::ALL {
        let Some(settings) = layers.of(origin) else { continue };
        for part in settings.parts().filter(|part| part.is_set_by(origin)) {
            effective.policy.take(part, settings);
            effective.origins[part as usize] = origin;
        }
    }
    effective
}
