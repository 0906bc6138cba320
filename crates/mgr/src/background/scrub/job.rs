//! The durable record of the last scrub: its progress and its findings.

use types::{FileId, ObjectId};
use wire::admin::ScrubState;
use wire::native::{Damage, Finding, ScrubCursor, ScrubReply};
use xdr::{Malformed, Reader, Writer, Xdr};

const VERSION: u32 = 1;
/// Version of the scrub record in which findings may name objects of streams other than 0. In this version, the stream
/// number of an object follows its inode number.
const STREAM_VERSION: u32 = 2;
/// Largest number of iods in the scrub record: an iod number has 16 bits.
const IODS_MAX: usize = 1 << 16;
/// Largest number of findings in the scrub record. The scrub counts findings beyond this number, but does not record
/// them.
pub(super) const FINDINGS_MAX: usize = 1000;
/// Largest length of the error text `problem`, in bytes.
const PROBLEM_MAX: usize = 512;

/// One finding of the scrub: damage that the scrub found on one iod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Number of the iod that has the damage.
    pub(super) iod: u16,
    pub(super) finding: Finding,
}

/// The state of a scrub, as stored in the metadata store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Job {
    /// Serial number of the scrub: one more than that of the previous scrub.
    pub(super) serial: u64,
    pub(super) state: ScrubState,
    pub(super) problem: String,
    /// Start time of the scrub, in Unix seconds.
    pub(super) started: u64,
    pub(super) rate: u64,
    /// Numbers of the iods whose objects the scrub has not completely read. The scrub now reads the objects of the
    /// first iod in this list.
    pub(super) left: Vec<u16>,
    pub(super) cursor: Option<ScrubCursor>,
    /// Whether the totals `objects_total` and `bytes_total` are known.
    pub(super) counted: bool,
    pub(super) objects_total: u64,
    pub(super) bytes_total: u64,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) verified: u64,
    pub(super) rebuilt: u64,
    pub(super) found: u64,
    pub(super) findings: Vec<Found>,
}

impl Job {
    /// Adds a SCRUB reply of the first iod in `left` to the progress and to the findings of the scrub.
    pub(super) fn take(&mut self, reply: &ScrubReply) {
        self.objects += reply.objects;
        self.bytes += reply.bytes;
        self.verified += reply.verified;
        self.rebuilt += reply.rebuilt;
        self.found += reply.findings.len() as u64;
        let Some(iod) = self.left.first().copied() else { return };
        let room = FINDINGS_MAX.saturating_sub(self.findings.len());
        self.findings.extend(reply.findings.iter().take(room).map(|finding| Found { iod, finding: *finding }));
        self.cursor = reply.next;
        if reply.next.is_none() {
            self.left.remove(0);
        }
        self.problem.clear();
    }

    fn numbers(&self) -> [u64; 10] {
        [
            self.serial,
            self.started,
            self.rate,
            self.objects_total,
            self.bytes_total,
            self.objects,
            self.bytes,
            self.verified,
            self.rebuilt,
            self.found,
        ]
    }
}

fn put_object(out: &mut Writer, object: ObjectId, streams: bool) {
    out.u64(object.file.0);
    if streams {
        out.u32(object.stream);
    }
}

fn take_object(input: &mut Reader, streams: bool) -> Result<ObjectId, Malformed> {
    Ok(ObjectId::new(FileId(input.u64()?), if streams { input.u32()? } else { 0 }))
}

impl Found {
    fn put(&self, out: &mut Writer, streams: bool) {
        let Finding { object, damage, offset, len } = self.finding;
        out.u32(self.iod.into());
        put_object(out, object, streams);
        out.u32(damage as u32);
        out.u64(offset);
        out.u64(len);
    }

    fn take(input: &mut Reader, streams: bool) -> Result<Self, Malformed> {
        let iod = number(input)?;
        let object = take_object(input, streams)?;
        let damage = Damage::decode(input)?;
        Ok(Found { iod, finding: Finding { object, damage, offset: input.u64()?, len: input.u64()? } })
    }
}

fn number(input: &mut Reader) -> Result<u16, Malformed> {
    let value = input.u32()?;
    u16::try_from(value).map_err(|_| Malformed::BadValue { what: "number of an iod", value })
}

impl Xdr for Job {
    fn encode(&self, out: &mut Writer) {
        let mut objects = self.findings.iter().map(|found| found.finding.object).chain(self.cursor.map(|at| at.object));
        let streams = objects.any(|object| object.stream != 0);
        out.u32(if streams { STREAM_VERSION } else { VERSION });
        self.state.encode(out);
        for value in self.numbers() {
            out.u64(value);
        }
        let problem = &self.problem[..self.problem.floor_char_boundary(PROBLEM_MAX)];
        out.opaque(&bytes::Bytes::copy_from_slice(problem.as_bytes()));
        out.array(&self.left, |out, iod| out.u32(u32::from(*iod)));
        out.optional(self.cursor.as_ref(), |out, cursor| {
            put_object(out, cursor.object, streams);
            out.u64(cursor.offset);
        });
        out.bool(self.counted);
        out.array(&self.findings, |out, found| found.put(out, streams));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let streams = match input.u32()? {
            VERSION => false,
            STREAM_VERSION => true,
            value => return Err(Malformed::BadValue { what: "version of a scrub record", value }),
        };
        let state = ScrubState::decode(input)?;
        let mut job = Job {
            state,
            serial: input.u64()?,
            started: input.u64()?,
            rate: input.u64()?,
            objects_total: input.u64()?,
            bytes_total: input.u64()?,
            objects: input.u64()?,
            bytes: input.u64()?,
            verified: input.u64()?,
            rebuilt: input.u64()?,
            found: input.u64()?,
            ..Job::default()
        };
        let problem = input.opaque(PROBLEM_MAX)?;
        job.problem =
            std::str::from_utf8(&problem).map_err(|_| Malformed::Invalid("text that is not UTF-8"))?.to_owned();
        job.left = input.array(IODS_MAX, number)?;
        job.cursor =
            input.optional(|input| Ok(ScrubCursor { object: take_object(input, streams)?, offset: input.u64()? }))?;
        job.counted = input.bool()?;
        job.findings = input.array(FINDINGS_MAX, |input| Found::take(input, streams))?;
        Ok(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(object: u64) -> Finding {
        Finding { object: ObjectId::stream_0(FileId(object)), damage: Damage::Checksum, offset: 2, len: 3 }
    }

    fn sample() -> Job {
        let mut job = Job { serial: 1, started: 2, rate: 3, left: vec![7, 9], counted: true, ..Job::default() };
        (job.objects_total, job.bytes_total) = (4, 5);
        (job.state, job.problem) = (ScrubState::Running, "é".into());
        job.take(&ScrubReply {
            next: Some(ScrubCursor { object: ObjectId::stream_0(FileId(1)), offset: 2 }),
            objects: 6,
            bytes: 7,
            verified: 8,
            rebuilt: 9,
            findings: vec![finding(1)],
        });
        job
    }

    fn job_of(bytes: &bytes::Bytes) -> Job {
        Job::from_bytes(bytes).unwrap()
    }

    #[test]
    fn a_job_has_its_golden_bytes() {
        let mut job = sample();
        job.problem = "é".into();
        let bytes = job.to_bytes();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let numbers: String = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1].iter().map(|n| format!("{n:016x}")).collect();
        let want = format!(
            "0000000100000001{numbers}00000002c3a9000000000002000000070000000900000001{}{}",
            "0000000000000001000000000000000200000001",
            "0000000100000007000000000000000100000001000000000000000200000000000000 03".replace(' ', "")
        );
        assert_eq!(hex, want);
        assert_eq!(Job::from_bytes(&bytes), Ok(job));
        for cut in 0..bytes.len() {
            assert!(Job::from_bytes(&bytes.slice(..cut)).is_err(), "{cut} bytes");
        }
        let mut job = job_of(&bytes);
        job.findings[0].finding.object.stream = 5;
        let of_streams = job.to_bytes();
        assert_eq!((of_streams[3], of_streams.len()), (2, bytes.len() + 8), "one cursor and one finding");
        assert_eq!(job_of(&of_streams), job);
    }

    #[test]
    fn a_finished_iod_is_followed_by_the_next_and_findings_are_bounded() {
        let mut job = sample();
        assert_eq!((job.left.len(), job.problem.as_str()), (2, ""));
        let many = ScrubReply { findings: vec![finding(5); FINDINGS_MAX], ..ScrubReply::default() };
        job.take(&many);
        assert_eq!((job.left.as_slice(), job.cursor), (&[9][..], None));
        assert_eq!((job.findings.len(), job.found), (FINDINGS_MAX, FINDINGS_MAX as u64 + 1));
        assert!(job.to_bytes().len() < types::limits::VALUE_MAX);
        job.take(&ScrubReply::default());
        assert!(job.left.is_empty());
        job.take(&ScrubReply::default());
    }
}
