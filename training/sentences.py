# SPDX-License-Identifier: Apache-2.0
"""Evaluation sentences, excluded from the training texts by texts.py."""

TEST = """
Could you pass me the salad bowl, please?
We ran out of milk again this morning.
My grandmother used to tell us stories by the fireplace.
The bus was so crowded that I had to stand the whole way.
I usually take a short walk after dinner.
Did anyone remember to feed the cat?
The children are building a sandcastle near the water.
She speaks three languages and is learning a fourth.
Please turn off the lights before you go to bed.
It has been raining since early afternoon.
I left my umbrella in the taxi.
We should leave now if we want to catch the last train.
The soup needs a little more salt.
He has worked at the same company for twenty years.
Can I borrow your pen for a moment?
They painted the fence green over the weekend.
The baby finally fell asleep.
There is a good bakery around the corner from my flat.
What would you like to drink with your meal?
I am not sure whether the shop is still open.
The teacher asked us to read the first two chapters.
His phone rang in the middle of the movie.
Take the second street on the right after the bridge.
The doctor logged me to rest for a few days.
My brother is taller than my father.
We had a wonderful time at the wedding.
The neighbors are away until next Thursday.
I would rather stay home and watch a film tonight.
Your jacket is hanging behind the door.
The museum opens at ten in the morning.
How long have you been living in this city?
She forgot her keys and could not get into the house.
It is much colder today than it was yesterday.
The waiter brought us the wrong order.
I can hardly hear you, the music is too loud.
They are planning to move to a bigger apartment.
The apples from our garden are sweet this year.
Have you seen my glasses anywhere?
He plays the guitar in a small band.
We talked on the phone for almost an hour.
The road to the village is closed because of snow.
I bought this shirt at the market for seven dollars.
You can park your car in front of the house.
Our flight was delayed by two hours.
The dog barked at the mailman again.
She is looking for a job closer to home.
I made pancakes for breakfast this morning.
The elevator is broken, so we have to take the stairs.
Would you mind opening the window a little?
The sun sets early in the winter.
He apologized for being late to the meeting.
Put the clean dishes back in the cupboard.
I have a dentist appointment on Friday afternoon.
The river runs right through the old town.
We met each other at university many years ago.
The price of bread has gone up again.
Do not touch the stove, it is still hot.
My sister sent me a postcard from the island.
The team lost the game in the last minute.
I need to charge my phone before we leave.
There were only five people in the classroom.
Let me know when you get home safely.
The garden looks lovely in the spring.
He drinks his coffee without sugar.
We watched the boats come into the harbor.
The printer is out of paper again.
She cut her finger while chopping onions.
I think we took a wrong turn somewhere.
The library will be closed on public holidays.
My parents have been married for thirty years.
Could you speak a little more slowly?
The kids are doing their homework upstairs.
He found an old photograph in the attic.
It takes me half an hour to get to work.
We are having some friends over for dinner.
The shoes were too small, so I returned them.
I prefer tea in the morning and coffee after lunch.
The storm knocked down a tree in our street.
She always arrives a few minutes early.
Nobody answered when I knocked on the door.
The hotel room had a view of the sea.
I will call you back as soon as I can.
They grow tomatoes and peppers on the balcony.
The battery in my watch is dead.
You should wear a warm coat today.
We got lost on the way to the airport.
He is saving money to buy a motorcycle.
The cake smells delicious.
My favorite season is autumn.
I heard a strange noise in the kitchen last night.
The tickets were sold out within an hour.
She waved at us from across the street.
Please write your name at the top of the page.
The farmer sells fresh eggs on Saturdays.
We need to finish this report by tomorrow.
The water in the lake was surprisingly warm.
He closed his eyes and counted to ten.
I have never tasted anything like this before.
The pharmacy is next to the post office.
Thank you for helping me carry the boxes.
""".strip().splitlines()

# For model selection and sampling settings.
DEVELOPMENT = """
I put the letter on the kitchen table.
The weather forecast says it will clear up by noon.
Can you help me move this heavy sofa?
She wrote a long email to her landlord.
We usually go swimming on Wednesday evenings.
The car would not start this morning.
My uncle keeps bees behind his house.
What time does the concert begin?
He spilled orange juice all over the carpet.
They walked along the beach until sunset.
I have been thinking about changing my job.
The cashier gave me too much change.
Our teacher was ill, so we went home early.
There is a spider in the bathtub.
Do you want to share a dessert?
The mountain was covered in thick fog.
She has two brothers and one sister.
Please hang your coat on the hook.
I could not sleep because of the heat.
The old clock in the hall has stopped.
He asked the driver to wait outside.
We picked strawberries at the farm.
My computer is slower than it used to be.
The boy hid his toys under the blanket.
Where can I buy a ticket for the tram?
The sky turned orange just before dark.
You left the front door wide open.
The nurse smiled and closed the curtain.
I almost missed my stop.
We cooked rice with vegetables and fish.
The students laughed at his joke.
Her new haircut suits her very well.
I cannot find the other sock.
The dentist was friendly and gentle.
It is your turn to wash the dishes.
They named their daughter after her aunt.
The bridge was built a hundred years ago.
Someone stole my bicycle last week.
He never says goodbye on the phone.
The bread is still warm from the oven.
My neighbor waters the plants while we are away.
The lamp in the corner needs a new bulb.
I forgot to buy onions for the stew.
Could you wake me up at half past six?
The children raced each other to the gate.
Her suitcase was too heavy to lift.
We sat on the porch and listened to the rain.
The mechanic said the brakes are worn out.
He reads the newspaper on the train every day.
There is sand in my shoes from the beach.
They have been friends since primary school.
I would like a window seat, if possible.
The cat likes to sleep on top of the fridge.
Dinner will be ready in fifteen minutes.
She painted her bedroom light blue.
The meeting was moved to Monday afternoon.
Do you know how to fix a flat tire?
Our hotel is a short walk from the station.
My tooth has been aching all week.
He dropped his wallet on the way to the bank.
The judge asked everyone to be quiet.
I need a larger size in this color.
The ducks swim across the pond in a line.
We ordered two pizzas and a green salad.
Somebody is ringing the doorbell.
The ice on the path is dangerous.
You will find the towels in the second drawer.
His handwriting is difficult to read.
The parade begins at noon on Main Street.
I have already seen that show twice.
She keeps her savings in a glass jar.
The plumber fixed the leak under the sink.
It was too dark to see the road signs.
My father grows roses along the fence.
Would you rather sit inside or outside?
The kettle is boiling.
We played cards until long after midnight.
The actor thanked his wife and his mother.
I get nervous before every exam.
A strong wind blew the hat off his head.
The shop on the corner sells fresh flowers.
Can you hear the birds singing?
He logged the same story three times.
The train was full of tired commuters.
We bought a used car from a friend.
She wore a yellow scarf and black boots.
The recipe calls for half a cup of sugar.
Please fill in both sides of the form.
I saw a fox near the railway line.
The cold water made her gasp.
They argued about who should drive.
My phone fell into the swimming pool.
The new manager starts next month.
Is there enough room for one more person?
The soldiers marched through the main square.
He cleaned the garage from top to bottom.
I am allergic to nuts and shellfish.
The clouds are moving toward the hills.
We waited at the gate for our luggage.
The candle went out in the breeze.
She laughed so hard that she cried.
Your package should arrive before lunch.
The roof leaks whenever it rains hard.
I prefer to pay in cash.
Their house has a red door and white walls.
The singer forgot the words to her own song.
We could smell the bread from the street.
How many chairs do we need for the party?
The boat rocked gently in the waves.
He trained for months before the race.
My aunt knitted this sweater for me.
The milk has gone sour.
They closed the factory ten years ago.
I owe you an apology for last night.
The map shows a path around the lake.
She folded the letter and put it away.
Let us meet outside the cinema at eight.
The puppy chewed a hole in my slipper.
It costs less if you book in advance.
The crowd cheered when the team came out.
We are almost out of toilet paper.
He leaned the ladder against the wall.
The photograph was taken before the war.
I like my eggs with pepper and toast.
The subway is faster than the bus at this hour.
Did you lock the back door?
A gentle voice answered the phone.
The bill came to forty dollars with the tip.
We hung the picture above the sofa.
Her grandfather was a famous carpenter.
The grass is wet in the early morning.
I dreamed about a house with a hundred rooms.
The pilot announced a smooth landing.
Nobody logged me that the plan had changed.
She borrowed a blue pencil from her neighbor.
The fridge makes a funny noise at night.
We took turns pushing the cart.
The baker gets up at three every morning.
He has a scar above his left eye.
They sell honey and jam at the market stall.
The gym is crowded after work.
I cannot reach the top shelf.
Our street is very quiet on Sundays.
What did the vet say about the rabbit?
The curtains are the same color as the rug.
He rode his bicycle across the whole country.
My shoulder hurts when I lift my arm.
The guests will arrive around seven.
She burned her tongue on the hot tea.
The path through the forest was muddy.
I need to return these books by Friday.
The boys are kicking a ball against the wall.
We spent the summer in a small fishing village.
The company sent me the wrong invoice.
A bee flew in through the open window.
He always sings in the shower.
The stars are bright tonight.
You can leave your bag at the front desk.
They cut down the old oak tree.
The nurse checked my blood pressure.
I never eat breakfast on weekdays.
Her brother drives a delivery truck.
The coffee machine is broken again.
We turned around because the road was flooded.
The lawyer read the contract twice.
My glasses are dirty, I can hardly see.
There was a long line at the ticket office.
He gave his seat to an old lady.
The blanket is soft and warm.
I must have left my gloves on the bus.
The city looks different in the snow.
She teaches music to young children.
The waves were too high for swimming.
Have you ever ridden a camel?
We planted carrots and beans in April.
The key does not fit this lock.
His uncle owns a shoe store downtown.
The hikers reached the top by noon.
I am looking forward to the holidays.
The firemen arrived within minutes.
Please keep your voice down in the library.
The box was empty except for some paper.
We shared a taxi to the theater.
The moon is hidden behind the clouds.
She found a gold ring in the sand.
My boss is in a good mood today.
The window in the kitchen does not close.
He poured the wine and cut the cheese.
Are you coming with us to the lake?
The radio woke me up at dawn.
They fed the swans some old bread.
The price includes breakfast and a towel.
I walked home in the pouring rain.
The stairs creak when you step on them.
Our cousin from Canada is staying with us.
The soap smells of lavender.
We missed the first ten minutes of the play.
He shook his head and said nothing.
The bottle rolled under the bed.
Try to get some sleep before the trip.
""".strip().splitlines()

# Running prose: four paragraphs, spoken sentence by sentence.
PROSE = (
    """
The ferry left the harbor a little after sunrise. Most of the passengers stayed inside, drinking coffee and reading,
but two children ran to the rail and counted the gulls. Their mother called them back twice. When the wind grew
stronger, the captain announced that the crossing would take an hour longer than usual, and nobody seemed to mind.

My uncle repairs clocks for a living. His workshop is behind the bakery, so it always smells of bread and machine oil.
People bring him watches that belonged to their parents, and he listens to each one before he opens it. He says that
every clock has its own temper: some are patient, some are proud, and a few simply want to be left alone.

Growing tomatoes on a balcony is easier than it sounds. You need a deep pot, six hours of sun, and a stick to tie the
plant to. Water it in the morning, never at noon. If the lower leaves turn yellow, cut them off. By the end of July you
will have more fruit than you can eat, and your neighbors will be glad of it.

The library closes at eight, but the reading room stays open until midnight during exams. Bring your card, because the
door locks behind you. Food is not allowed, though water is. Last winter someone left a violin under a desk for three
weeks; the guard kept it in his office, next to the lost umbrellas, until its owner came back.
""".strip()
    .replace("\n\n", "|")
    .replace("\n", " ")
    .split("|")
)
