//! SCRUB of the admin program: starts, monitors and cancels the search for damage on the disks of the iods.

use super::{put_text, take_text};
use crate::native::Damage;
use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Maximum number of findings in one reply to SCRUB.
pub const SCRUB_FINDINGS_MAX: usize = 64;
/// Maximum number of paths in one finding.
pub const SCRUB_PATHS_MAX: usize = 8;
/// Maximum length of a path in a finding, in bytes. The mgr truncates longer paths.
pub const SCRUB_PATH_MAX: usize = 1024;
/// Maximum number of damaged file ranges in one finding.
pub const SCRUB_RANGES_MAX: usize = 64;

const _: () = assert!(
    SCRUB_FINDINGS_MAX * (SCRUB_PATHS_MAX * (SCRUB_PATH_MAX + 8) + SCRUB_RANGES_MAX * 16 + 2048)
        < types::limits::RECORD_MAX
);

/// What a SCRUB request asks of the mgr, before the mgr replies with the state of the scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ScrubAction {
    /// Do nothing; only reply with the state of the scrub.
    Status = 0,
    /// Start a scrub. The mgr refuses this while a scrub is running.
    Start = 1,
    /// Cancel the running scrub. This is no error if no scrub is running.
    Cancel = 2,
}

/// Arguments of SCRUB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubArgs {
    /// Whether the mgr starts a scrub, cancels the running scrub, or only replies with the state of the scrub.
    pub action: ScrubAction,
    /// For a new scrub: maximum speed in bytes per second, of all iods together; 0 means no limit.
    pub rate: u64,
    /// Index of the first finding to return. `None` returns no findings, which is faster, because the mgr need not look
    /// up the paths of damaged files.
    pub findings_from: Option<u32>,
}

/// Whether the scrub that was started last is running, or how it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum ScrubState {
    /// No scrub was ever started in this file system.
    #[default]
    Never = 0,
    /// The scrub is running.
    Running = 1,
    /// The scrub has checked all objects.
    Done = 2,
    /// An administrator has cancelled the scrub.
    Cancelled = 3,
    /// An error has ended the scrub.
    Failed = 4,
}

/// Result of SCRUB: the state of the scrub that was started last, and its findings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReply {
    /// Why the mgr refused the action; `None` if it executed the action. The other fields describe the last scrub in
    /// both cases.
    pub refused: Option<String>,
    /// Whether the scrub is running, or how it ended.
    pub state: ScrubState,
    /// The error that delays the scrub or has ended it, for people.
    pub problem: Option<String>,
    /// Time at which the scrub started, as Unix time in seconds.
    pub started: u64,
    /// Maximum speed of the scrub in bytes per second; 0 means no limit.
    pub rate: u64,
    /// Number of objects that the scrub has checked.
    pub objects: u64,
    /// Number of objects on all iods when the scrub began; 0 if the mgr does not know yet.
    pub objects_total: u64,
    /// Number of bytes that the scrub has read.
    pub bytes: u64,
    /// Number of bytes in all objects when the scrub began.
    pub bytes_total: u64,
    /// Number of bytes that the scrub has read in blocks that have a checksum.
    pub verified: u64,
    /// Number of blocks that had no checksum after a crash and got one from the scrub.
    pub rebuilt: u64,
    /// Number of findings of the scrub. The mgr keeps only a limited number of findings.
    pub found: u64,
    /// Number of findings of the scrub that the mgr has kept and can return.
    pub kept: u32,
    /// The findings of the scrub, from the index in the request on.
    pub findings: Vec<ScrubFinding>,
}

/// A finding of a scrub: damaged bytes of one object, and the file that they belong to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubFinding {
    /// Id of the iod that has the damaged object.
    pub iod: String,
    /// File number of the damaged object, which is the inode number of its file.
    pub object: u64,
    /// The kind of damage.
    pub damage: Damage,
    /// Offset of the first damaged byte of the object.
    pub offset: u64,
    /// Number of damaged bytes of the object.
    pub len: u64,
    /// Paths of the file; empty if the file no longer exists.
    pub paths: Vec<Bytes>,
    /// The damaged ranges of the file: for each range the offset of its first byte, and the offset after its last byte.
    pub ranges: Vec<(u64, u64)>,
    /// Whether the file has more damaged ranges than this finding lists.
    pub more: bool,
}

impl Xdr for ScrubArgs {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.action as u32);
        out.u64(self.rate);
        out.optional(self.findings_from.as_ref(), |out, from| out.u32(*from));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let action = match input.u32()? {
            0 => ScrubAction::Status,
            1 => ScrubAction::Start,
            2 => ScrubAction::Cancel,
            value => return Err(Malformed::BadValue { what: "action of a scrub", value }),
        };
        Ok(ScrubArgs { action, rate: input.u64()?, findings_from: input.optional(Reader::u32)? })
    }
}

impl Xdr for ScrubState {
    fn encode(&self, out: &mut Writer) {
        out.u32(*self as u32);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(match input.u32()? {
            0 => ScrubState::Never,
            1 => ScrubState::Running,
            2 => ScrubState::Done,
            3 => ScrubState::Cancelled,
            4 => ScrubState::Failed,
            value => return Err(Malformed::BadValue { what: "state of a scrub", value }),
        })
    }
}

impl Xdr for ScrubFinding {
    fn encode(&self, out: &mut Writer) {
        put_text(out, &self.iod);
        out.u64(self.object);
        self.damage.encode(out);
        out.u64(self.offset);
        out.u64(self.len);
        out.array(&self.paths[..self.paths.len().min(SCRUB_PATHS_MAX)], |out, path| {
            out.opaque(&path.slice(..path.len().min(SCRUB_PATH_MAX)));
        });
        out.array(&self.ranges[..self.ranges.len().min(SCRUB_RANGES_MAX)], |out, (start, end)| {
            out.u64(*start);
            out.u64(*end);
        });
        out.bool(self.more);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ScrubFinding {
            iod: take_text(input)?,
            object: input.u64()?,
            damage: Damage::decode(input)?,
            offset: input.u64()?,
            len: input.u64()?,
            paths: input.array(SCRUB_PATHS_MAX, |input| input.opaque(SCRUB_PATH_MAX))?,
            ranges: input.array(SCRUB_RANGES_MAX, |input| Ok((input.u64()?, input.u64()?)))?,
            more: input.bool()?,
        })
    }
}

impl Xdr for ScrubReply {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.refused.as_ref(), |out, text| put_text(out, text));
        self.state.encode(out);
        out.optional(self.problem.as_ref(), |out, text| put_text(out, text));
        for number in self.numbers() {
            out.u64(number);
        }
        out.u32(self.kept);
        out.array(&self.findings[..self.findings.len().min(SCRUB_FINDINGS_MAX)], |out, finding| finding.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let refused = input.optional(take_text)?;
        let state = ScrubState::decode(input)?;
        let problem = input.optional(take_text)?;
        Ok(ScrubReply {
            refused,
            state,
            problem,
            started: input.u64()?,
            rate: input.u64()?,
            objects: input.u64()?,
            objects_total: input.u64()?,
            bytes: input.u64()?,
            bytes_total: input.u64()?,
            verified: input.u64()?,
            rebuilt: input.u64()?,
            found: input.u64()?,
            kept: input.u32()?,
            findings: input.array(SCRUB_FINDINGS_MAX, ScrubFinding::decode)?,
        })
    }
}

impl ScrubReply {
    fn numbers(&self) -> [u64; 9] {
        [
            self.started,
            self.rate,
            self.objects,
            self.objects_total,
            self.bytes,
            self.bytes_total,
            self.verified,
            self.rebuilt,
            self.found,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn messages_have_their_golden_bytes() {
        let args = ScrubArgs { action: ScrubAction::Start, rate: 5, findings_from: Some(6) };
        assert_eq!(hex(&args.to_bytes()), "0000000100000000000000050000000100000006");
        let finding = ScrubFinding {
            iod: "i".into(),
            object: 1,
            damage: Damage::Checksum,
            offset: 2,
            len: 3,
            paths: vec![Bytes::from_static(b"/f")],
            ranges: vec![(4, 7)],
            more: true,
        };
        let reply = ScrubReply {
            refused: Some("no".into()),
            state: ScrubState::Failed,
            problem: None,
            started: 1,
            rate: 2,
            objects: 3,
            objects_total: 4,
            bytes: 5,
            bytes_total: 6,
            verified: 7,
            rebuilt: 8,
            found: 9,
            kept: 10,
            findings: vec![finding],
        };
        let numbers: String = (1..=9).map(|n| format!("{n:016x}")).collect();
        let want = format!(
            "00000001000000026e6f00000000000400000000{numbers}0000000a00000001{}{}",
            "00000001690000000000000000000001000000010000000000000002000000000000000300000001",
            "000000022f660000000000010000000000000004000000000000000700000001"
        );
        assert_eq!(hex(&reply.to_bytes()), want);
        for cut in 0..args.to_bytes().len() {
            assert!(ScrubArgs::from_bytes(&args.to_bytes().slice(..cut)).is_err(), "{cut} bytes");
        }
        for cut in 0..reply.to_bytes().len() {
            assert!(ScrubReply::from_bytes(&reply.to_bytes().slice(..cut)).is_err(), "{cut} bytes");
        }
        assert_eq!(ScrubArgs::from_bytes(&args.to_bytes()), Ok(args));
        assert_eq!(ScrubReply::from_bytes(&reply.to_bytes()), Ok(reply));
    }
}
