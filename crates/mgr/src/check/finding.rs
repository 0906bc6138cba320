//! Findings of a check: code, severity and remedy for each kind of damage.

use meta::Fault;
use types::{FileId, IodId};
use wire::admin::{Finding, Mended, Severity};

/// A kind of damage that a check finds on the iods or in the mgr's own records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    IodUnreachable,
    RegistryDamaged,
    LayoutDamaged,
    LayoutUnknownIod,
    LayoutMissing,
    ObjectMissing,
    ObjectShort,
    ObjectDamaged,
    BytesDamaged,
    CopyMissing,
    CopyShort,
    CopyDamaged,
    ObjectStray,
    ObjectForeign,
    ObjectNewer,
    ObjectReplaced,
    ObjectUnknown,
    ObjectBeyond,
    GenerationNewer,
    GenerationOlder,
    CutRefused,
}

/// The remedy in a finding about a damaged copy of a file that has another copy.
const COPY: &str = "copy it from the other copy, if that has the bytes";

impl Kind {
    /// Returns the kind that the check reports instead of `self` if the file has another copy: a damaged copy loses no
    /// data, while a damaged object of a file with one copy does.
    pub(super) fn of_a_copy(self) -> Self {
        match self {
            Kind::ObjectMissing => Kind::CopyMissing,
            Kind::ObjectShort => Kind::CopyShort,
            Kind::ObjectDamaged => Kind::CopyDamaged,
            other => other,
        }
    }

    /// Returns whether `code` is the code of damage to one of several copies of a file.
    pub(super) fn is_of_a_copy(code: &str) -> bool {
        [Kind::CopyMissing, Kind::CopyShort, Kind::CopyDamaged].iter().any(|kind| kind.row().0 == code)
    }

    fn row(self) -> (&'static str, Severity, &'static str) {
        use Severity::*;
        match self {
            Kind::IodUnreachable => ("iod-unreachable", Unchecked, "none: start it, then check again"),
            Kind::RegistryDamaged => {
                ("registry-damaged", Error, "remove the record of a client; none for others: restore the store")
            }
            Kind::LayoutDamaged => ("layout-damaged", Loss, "none: restore the file from a copy"),
            Kind::LayoutUnknownIod => ("layout-unknown-iod", Loss, "none: restore the file from a copy"),
            Kind::LayoutMissing => ("layout-missing", Loss, "none: restore the file from a copy"),
            Kind::ObjectMissing => ("object-missing", Loss, "none: restore the file from a copy"),
            Kind::ObjectShort => ("object-short", Loss, "none: restore the file from a copy"),
            Kind::ObjectDamaged => {
                ("object-damaged", Loss, "none: restore the file from a copy and remove the old one")
            }
            Kind::BytesDamaged => ("bytes-damaged", Loss, "none: restore the file from a copy"),
            Kind::CopyMissing => ("copy-missing", Error, COPY),
            Kind::CopyShort => ("copy-short", Error, COPY),
            Kind::CopyDamaged => ("copy-damaged", Error, COPY),
            Kind::ObjectStray => ("object-stray", Error, "remove the object"),
            Kind::ObjectForeign => ("object-foreign", Error, "none: check its content, then remove it by hand"),
            Kind::ObjectNewer => {
                ("object-newer", Error, "none: run the version of weir that wrote it; if none did, remove it by hand")
            }
            Kind::ObjectReplaced => {
                ("object-replaced", Error, "none: if no other version of weir uses its stream, remove it by hand")
            }
            Kind::ObjectUnknown => (
                "object-unknown",
                Error,
                "none: it may be the only copy of a file; docs/backup.md says how to get its bytes",
            ),
            Kind::ObjectBeyond => (
                "object-beyond",
                Error,
                "use the size of the objects on the iods; of two copies, truncate the longer one",
            ),
            Kind::GenerationNewer => ("generation-newer", Error, "raise the generation of the file"),
            Kind::GenerationOlder => ("generation-older", Error, "fence the object again"),
            Kind::CutRefused => {
                ("cut-refused", Error, "truncate the other objects; bytes beyond the size on this iod count as written")
            }
        }
    }

    /// Returns a finding of this kind of damage, with the severity and the remedy that belong to the kind.
    pub(crate) fn found(self, inode: Option<FileId>, iod: Option<IodId>, text: String) -> Finding {
        let (code, severity, remedy) = self.row();
        Finding {
            code: code.to_owned(),
            severity,
            inode: inode.map(|inode| inode.0),
            paths: Vec::new(),
            iod: iod.map(|iod| iod.to_string()),
            range: None,
            text,
            remedy: remedy.to_owned(),
            mended: Mended::No,
        }
    }
}

/// Returns the finding that reports a fault that the namespace check found.
pub(crate) fn of(fault: &Fault) -> Finding {
    let severity = match fault {
        Fault::Record { .. } | Fault::Root | Fault::NoDirectory { .. } | Fault::Dangling { .. } => Severity::Loss,
        _ => Severity::Error,
    };
    Finding {
        code: fault.code().to_owned(),
        severity,
        inode: fault.file().map(|file| file.0),
        paths: Vec::new(),
        iod: None,
        range: None,
        text: fault.to_string(),
        remedy: fault.remedy().to_owned(),
        mended: Mended::No,
    }
}
