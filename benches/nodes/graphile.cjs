// graphile-worker: URL DEPTH JOBS AT_ONCE; prints the seconds that the first JOBS of DEPTH + JOBS jobs took.
const { Logger, makeWorkerUtils, run } = require("graphile-worker");

async function main([connectionString, depth, jobs, atOnce]) {
  const logger = new Logger(() => () => {});
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  const waiting = Number(depth) + Number(jobs);
  const add = "SELECT count(graphile_worker.add_job('nothing', '{}'::json)) FROM generate_series(1, $1)";
  await utils.withPgClient((client) => client.query(add, [waiting]));
  await utils.withPgClient((client) => client.query("VACUUM ANALYZE"));
  let left = Number(jobs);
  const begun = process.hrtime.bigint();
  const nothing = async () => {
    left -= 1;
    if (left === 0) {
      console.log(Number(process.hrtime.bigint() - begun) / 1e9);
      process.exit(0);
    }
  };
  const concurrency = Number(atOnce);
  await run({ connectionString, logger, concurrency, maxPoolSize: concurrency + 2, taskList: { nothing } });
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
