// Questions of which only the newest matters: one is under way, one waits, and what is older is dropped.
import { Superseded } from "./server";

export class Newest<Q, A> {
  private waiting: Q | null = null;
  private isAsking = false;
  sequence = 0;

  constructor(
    private readonly ask: (question: Q, sequence: number) => Promise<A>,
    private readonly answered: (answer: A, question: Q, isNewest: boolean) => void,
    private readonly failed: (error: Error, question: Q) => void,
  ) {}

  /** Asks at once, or when what is under way is answered; a newer question takes the place of one that waits. */
  put(question: Q): void {
    this.waiting = question;
    void this.next();
  }
  /** Forgets what waits; an answer that is under way is dropped. */
  drop(): void {
    this.waiting = null;
    this.sequence++;
  }
  private async next(): Promise<void> {
    if (this.isAsking || this.waiting === null) return;
    const question = this.waiting, sequence = ++this.sequence;
    this.waiting = null;
    this.isAsking = true;
    try {
      const answer = await this.ask(question, sequence);
      if (sequence === this.sequence) this.answered(answer, question, this.waiting === null);
    } catch (error) {
      if (error instanceof Superseded) this.waiting ??= question;
      else if (this.waiting === null && sequence === this.sequence) this.failed(error as Error, question);
    }
    this.isAsking = false;
    void this.next();
  }
}
